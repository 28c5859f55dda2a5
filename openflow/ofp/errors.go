// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// errorNumber is the type ("kind") and the code with which the versions from first to last encode an error.
// vendor is 0 for an error of OpenFlow itself, otherwise it is the experimenter. In OpenFlow 1.0, Nicira's
// errors have a type and a code. All other experimenters' errors have only a type.
type errorNumber struct {
	first, last Version
	vendor      uint32
	kind, code  uint16
}

const (
	v10 = of.Version10
	v13 = of.Version13
	v14 = of.Version14
	v15 = of.Version15
)

// inAllVersions returns the numbers of an error that has the same type and code in every version. The
// function named later is for errors that OpenFlow 1.0 does not have.
func inAllVersions(kind, code uint16) []errorNumber { return []errorNumber{{v10, v15, 0, kind, code}} }

func later(kind, code uint16) []errorNumber { return []errorNumber{{v13, v15, 0, kind, code}} }

// nxLater returns the numbers of an error that OpenFlow 1.0 does not have. Nicira has a type and a code for
// it in OpenFlow 1.0. Later versions have it themselves.
func nxLater(nxKind, nxCode, kind, code uint16) []errorNumber {
	return []errorNumber{{v10, v10, nicira, nxKind, nxCode}, {v13, v15, 0, kind, code}}
}

// onf13 returns the numbers of an error that OpenFlow has since version 1.4. In OpenFlow 1.3 it is an error
// of the ONF with this number.
func onf13(number, kind, code uint16) []errorNumber {
	return []errorNumber{{v13, v13, onf, number, 0}, {v14, v15, 0, kind, code}}
}

// nxProp returns the numbers of an error in a property. In OpenFlow 1.0 it is an error of Nicira. In
// OpenFlow 1.3 it has the type kind13, and since OpenFlow 1.4 the type 14 (OFPET_BAD_PROPERTY).
func nxProp(nxKind, nxCode, kind13, code13, code uint16) []errorNumber {
	return []errorNumber{{v10, v10, nicira, nxKind, nxCode}, {v13, v13, 0, kind13, code13}, {v14, v15, 0, 14, code}}
}

// nxTLV returns the numbers of an error of Nicira about the fields tun_metadata or the TLV map.
func nxTLV(code10, kind uint16) []errorNumber {
	return []errorNumber{{v10, v10, nicira, 1, code10}, {v13, v15, nicira, kind, 0}}
}

// errorNumbers maps each error to its numbers in all versions (OpenFlow 1.5, 7.5.4, and Open vSwitch's
// extensions).
var errorNumbers = [of.ErrorCodes][]errorNumber{
	of.ErrHelloIncompatible: inAllVersions(0, 0), of.ErrBadVersion: inAllVersions(1, 0), of.ErrBadType: inAllVersions(1, 1), of.ErrBadMultipart: inAllVersions(1, 2),
	of.ErrBadExperimenter: inAllVersions(1, 3), of.ErrBadExpType: inAllVersions(1, 4), of.ErrRequestEPERM: inAllVersions(1, 5), of.ErrBadRequestLen: inAllVersions(1, 6),
	of.ErrBufferUnknown: inAllVersions(1, 8), of.ErrBadTableID: nxLater(1, 512, 1, 9), of.ErrIsSlave: {{v10, v10, 0, 1, 5}, {v13, v15, 0, 1, 10}},
	of.ErrBadPort: nxLater(1, 514, 1, 11), of.ErrBadPacket: later(1, 12), of.ErrMultipartOverflow: later(1, 13),
	of.ErrMustBeZero: {{v10, v10, nicira, 1, 515}, {v13, v15, nicira, 4, 0}},

	of.ErrActionBadType: inAllVersions(2, 0), of.ErrActionBadLen: inAllVersions(2, 1), of.ErrActionBadExperimenter: inAllVersions(2, 2), of.ErrActionBadExpType: inAllVersions(2, 3),
	of.ErrActionBadOutPort: inAllVersions(2, 4), of.ErrActionBadArgument: inAllVersions(2, 5), of.ErrActionTooMany: inAllVersions(2, 7), of.ErrActionBadQueue: inAllVersions(2, 8),
	of.ErrActionBadOutGroup: later(2, 9), of.ErrActionMatchInconsistent: nxLater(1, 522, 2, 10), of.ErrActionUnsupportedOrder: later(2, 11),
	of.ErrActionBadSetType: nxLater(1, 523, 2, 13), of.ErrActionBadSetLen: nxLater(1, 524, 2, 14), of.ErrActionBadSetArgument: nxLater(1, 525, 2, 15),
	of.ErrActionBadSetMask: {{v13, v14, onf, 4250, 0}, {v15, v15, 0, 2, 16}}, of.ErrActionMustBeZero: {{v10, v10, nicira, 2, 256}, {v13, v15, nicira, 11, 0}},
	of.ErrActionBadConjunction: {{v10, v10, nicira, 2, 526}, {v13, v15, nicira, 15, 0}},

	of.ErrUnknownInstruction: later(3, 0), of.ErrUnsupInstruction: nxLater(2, 257, 3, 1), of.ErrInstructionBadTableID: later(3, 2),
	of.ErrInstructionBadLen: later(3, 7), of.ErrDupInstruction: onf13(2600, 3, 9),

	of.ErrMatchBadType: later(4, 0), of.ErrMatchBadLen: later(4, 1), of.ErrMatchBadWildcards: nxLater(1, 262, 4, 5),
	of.ErrMatchBadField: nxLater(0, 263, 4, 6), of.ErrMatchBadValue: nxLater(1, 258, 4, 7), of.ErrMatchBadMask: nxLater(1, 259, 4, 8),
	of.ErrMatchBadPrereq: nxLater(1, 260, 4, 9), of.ErrMatchDupField: nxLater(1, 261, 4, 10),

	of.ErrFlowUnknown: later(5, 0), of.ErrFlowTableFull: {{v10, v10, 0, 3, 0}, {v13, v15, 0, 5, 1}},
	of.ErrFlowBadTableID: {{v10, v10, nicira, 5, 257}, {v13, v15, 0, 5, 2}}, of.ErrFlowOverlap: {{v10, v10, 0, 3, 1}, {v13, v15, 0, 5, 3}},
	of.ErrFlowEPERM: {{v10, v10, 0, 3, 2}, {v13, v15, 0, 5, 4}}, of.ErrFlowBadCommand: {{v10, v10, 0, 3, 4}, {v13, v15, 0, 5, 6}},
	of.ErrFlowBadFlags: nxLater(3, 258, 5, 7),

	of.ErrGroupExists: later(6, 0), of.ErrGroupInvalid: later(6, 1), of.ErrGroupOutOfGroups: later(6, 3), of.ErrGroupOutOfBuckets: later(6, 4),
	of.ErrGroupUnknown: later(6, 8), of.ErrGroupBadType: later(6, 10), of.ErrGroupBadCommand: later(6, 11), of.ErrGroupBadBucket: later(6, 12),
	of.ErrGroupBadWatch: later(6, 13), of.ErrGroupUnknownBucket: {{v15, v15, 0, 6, 15}}, of.ErrGroupBucketExists: {{v15, v15, 0, 6, 16}},

	of.ErrPortModBadPort: {{v10, v10, 0, 4, 0}, {v13, v15, 0, 7, 0}}, of.ErrPortModBadHWAddr: {{v10, v10, 0, 4, 1}, {v13, v15, 0, 7, 1}},
	of.ErrPortModBadConfig: later(7, 2), of.ErrPortModEPERM: later(7, 4),
	of.ErrTableModBadTable: later(8, 0), of.ErrTableModBadConfig: later(8, 1), of.ErrTableModEPERM: later(8, 2),
	of.ErrQueueBadPort: {{v10, v10, 0, 5, 0}, {v13, v15, 0, 9, 0}}, of.ErrQueueBadQueue: {{v10, v10, 0, 5, 1}, {v13, v15, 0, 9, 1}},
	of.ErrConfigBadFlags: later(10, 0), of.ErrRoleStale: later(11, 0), of.ErrRoleBadRole: nxLater(1, 513, 11, 2),

	of.ErrMeterUnknownError: later(12, 0), of.ErrMeterExists: later(12, 1), of.ErrMeterInvalid: later(12, 2), of.ErrMeterUnknown: later(12, 3),
	of.ErrMeterBadCommand: later(12, 4), of.ErrMeterBadFlags: later(12, 5), of.ErrMeterBadRate: later(12, 6), of.ErrMeterBadBand: later(12, 8), of.ErrMeterBadBandValue: later(12, 9),
	of.ErrMeterOutOfMeters: later(12, 10), of.ErrMeterOutOfBands: later(12, 11), of.ErrTableFeaturesEPERM: later(13, 5),

	of.ErrPropBadType: nxProp(13, 2, 13, 2, 0), of.ErrPropBadLen: nxProp(13, 3, 13, 3, 1), of.ErrPropBadValue: nxProp(13, 4, 13, 4, 2),
	of.ErrPropBadExperimenter: {{v10, v10, nicira, 14, 5}, {v13, v13, onf, 4445, 0}, {v14, v15, 0, 14, 5}},
	of.ErrPropBadExpType:      {{v10, v10, nicira, 14, 6}, {v13, v13, onf, 4446, 0}, {v14, v15, 0, 14, 6}},
	of.ErrAsyncInvalid:        {{v14, v15, 0, 15, 0}}, of.ErrAsyncUnsupported: {{v14, v15, 0, 15, 1}},

	of.ErrBundleBadID: onf13(2302, 17, 2), of.ErrBundleExists: onf13(2303, 17, 3), of.ErrBundleClosed: onf13(2304, 17, 4),
	of.ErrBundleOutOf: onf13(2305, 17, 5), of.ErrBundleBadType: onf13(2306, 17, 6), of.ErrBundleBadFlags: onf13(2307, 17, 7),
	of.ErrBundleBadLen: onf13(2308, 17, 8), of.ErrBundleBadXID: onf13(2309, 17, 9), of.ErrBundleUnsup: onf13(2310, 17, 10),
	of.ErrBundleConflict: onf13(2311, 17, 11), of.ErrBundleTooMany: onf13(2312, 17, 12), of.ErrBundleFailed: onf13(2313, 17, 13),
	of.ErrBundleTimeout: onf13(2314, 17, 14),

	of.ErrMonitorExists:      {{v10, v10, nicira, 1, 517}, {v13, v13, nicira, 6, 0}, {v14, v15, 0, 16, 1}},
	of.ErrMonitorUnknown:     {{v10, v10, nicira, 1, 519}, {v13, v13, nicira, 8, 0}, {v14, v15, 0, 16, 3}},
	of.ErrMonitorBadCommand:  {{v14, v15, 0, 16, 4}},
	of.ErrMonitorBadFlags:    {{v10, v10, nicira, 1, 518}, {v13, v13, nicira, 7, 0}, {v14, v15, 0, 16, 5}},
	of.ErrResumeNotSupported: {{v10, v10, nicira, 1, 533}, {v13, v15, nicira, 34, 0}},
	of.ErrResumeStale:        {{v10, v10, nicira, 1, 534}, {v13, v15, nicira, 35, 0}},

	of.ErrTLVBadCommand: nxTLV(527, 16), of.ErrTLVBadOptLen: nxTLV(528, 17), of.ErrTLVBadField: nxTLV(529, 18), of.ErrTLVTableFull: nxTLV(530, 19),
	of.ErrTLVAlreadyMapped: nxTLV(531, 20), of.ErrTLVDupEntry: nxTLV(532, 21), of.ErrTLVInUse: nxTLV(537, 38), of.ErrFlowInvalidTLV: nxTLV(536, 37),
}

// unencodable has the numbers of Open vSwitch's NXBRC_UNENCODABLE_ERROR. A controller gets it if its version
// of OpenFlow has no number for an error.
var unencodable = []errorNumber{{v10, v10, nicira, 1, 521}, {v13, v15, nicira, 10, 0}}

// errorNumberOf returns the experimenter, type and code with which version v encodes an error.
func errorNumberOf(code of.ErrorCode, v Version) errorNumber {
	for _, rows := range [][]errorNumber{errorNumbers[code], unencodable} {
		for _, n := range rows {
			if v >= n.first && v <= n.last {
				return n
			}
		}
	}
	return errorNumber{kind: 1}
}

// errorData is the number of bytes of the request that an error message contains (OpenFlow 1.5, 7.5.4: at
// least 64).
const errorData = 64

// Types of error messages whose error belongs to an experimenter.
const (
	errorExperimenter = 0xffff
	// errorNicira10 is the type of Nicira's errors in OpenFlow 1.0. The body has the vendor (32 bits), and the
	// type and the code of the error (16 bits each).
	errorNicira10 = 0xb0c2
)

// AppendError appends the error message about a request. The message has the request's xid and its first
// bytes.
func AppendError(b []byte, v Version, code of.ErrorCode, request []byte) []byte {
	start, n := len(b), errorNumberOf(code, v)
	b = Begin(b, v, TypeError, be.Uint32(request[4:]))
	switch {
	case n.vendor == 0:
		b = be.AppendUint16(be.AppendUint16(b, n.kind), n.code)
	case v == v10:
		b = be.AppendUint16(be.AppendUint16(b, errorNicira10), 0)
		b = be.AppendUint16(be.AppendUint16(be.AppendUint32(b, n.vendor), n.kind), n.code)
	default:
		b = be.AppendUint32(be.AppendUint16(be.AppendUint16(b, errorExperimenter), n.kind), n.vendor)
	}
	return End(append(b, request[:min(len(request), errorData)]...), start)
}
