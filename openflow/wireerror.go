// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// ErrorCode is an error of the OpenFlow specifications or of Nicira's extensions. Package ofp has the type
// and the code with which each version encodes it.
type ErrorCode uint8

// Error codes, with the names of the specifications.
const (
	ErrNone ErrorCode = iota
	ErrHelloIncompatible
	ErrBadVersion
	ErrBadType
	ErrBadMultipart
	ErrBadExperimenter
	ErrBadExpType
	ErrRequestEPERM
	ErrBadRequestLen
	ErrBufferUnknown
	ErrBadTableID
	ErrIsSlave
	ErrBadPort
	ErrBadPacket
	ErrMultipartOverflow
	ErrMustBeZero
	ErrActionBadType
	ErrActionBadLen
	ErrActionBadExperimenter
	ErrActionBadExpType
	ErrActionBadOutPort
	ErrActionBadArgument
	ErrActionTooMany
	ErrActionBadQueue
	ErrActionBadOutGroup
	ErrActionMatchInconsistent
	ErrActionUnsupportedOrder
	ErrActionBadSetType
	ErrActionBadSetLen
	ErrActionBadSetArgument
	ErrActionBadSetMask
	ErrActionMustBeZero
	ErrActionBadConjunction
	ErrUnknownInstruction
	ErrUnsupInstruction
	ErrInstructionBadTableID
	ErrInstructionBadLen
	ErrDupInstruction
	ErrMatchBadType
	ErrMatchBadLen
	ErrMatchBadWildcards
	ErrMatchBadField
	ErrMatchBadValue
	ErrMatchBadMask
	ErrMatchBadPrereq
	ErrMatchDupField
	ErrFlowUnknown
	ErrFlowTableFull
	ErrFlowBadTableID
	ErrFlowOverlap
	ErrFlowEPERM
	ErrFlowBadCommand
	ErrFlowBadFlags
	ErrGroupExists
	ErrGroupInvalid
	ErrGroupOutOfGroups
	ErrGroupOutOfBuckets
	ErrGroupUnknown
	ErrGroupBadType
	ErrGroupBadCommand
	ErrGroupBadBucket
	ErrGroupBadWatch
	ErrGroupUnknownBucket
	ErrGroupBucketExists
	ErrPortModBadPort
	ErrPortModBadHWAddr
	ErrPortModBadConfig
	ErrPortModEPERM
	ErrTableModBadTable
	ErrTableModBadConfig
	ErrTableModEPERM
	ErrQueueBadPort
	ErrQueueBadQueue
	ErrConfigBadFlags
	ErrRoleStale
	ErrRoleBadRole
	ErrMeterUnknownError
	ErrMeterExists
	ErrMeterInvalid
	ErrMeterUnknown
	ErrMeterBadCommand
	ErrMeterBadFlags
	ErrMeterBadRate
	ErrMeterBadBand
	ErrMeterBadBandValue
	ErrMeterOutOfMeters
	ErrMeterOutOfBands
	ErrTableFeaturesEPERM
	ErrPropBadType
	ErrPropBadLen
	ErrPropBadValue
	ErrPropBadExperimenter
	ErrPropBadExpType
	ErrAsyncInvalid
	ErrAsyncUnsupported
	ErrBundleBadID
	ErrBundleExists
	ErrBundleClosed
	ErrBundleOutOf
	ErrBundleBadType
	ErrBundleBadFlags
	ErrBundleBadLen
	ErrBundleBadXID
	ErrBundleUnsup
	ErrBundleConflict
	ErrBundleTooMany
	ErrBundleFailed
	ErrBundleTimeout
	ErrMonitorExists
	ErrMonitorUnknown
	ErrMonitorBadCommand
	ErrMonitorBadFlags
	ErrResumeNotSupported
	ErrResumeStale
	ErrTLVBadCommand
	ErrTLVBadOptLen
	ErrTLVBadField
	ErrTLVTableFull
	ErrTLVAlreadyMapped
	ErrTLVDupEntry
	ErrTLVInUse
	ErrFlowInvalidTLV
	ErrorCodes // number of error codes
)

// CodedError is an error that a controller gets as an OpenFlow error message with this code. Text is one line
// for the log.
type CodedError struct {
	Code ErrorCode
	Text string
}

func (e *CodedError) Error() string { return e.Text }

func coded(code ErrorCode, text string) error { return &CodedError{Code: code, Text: text} }

// Errorf returns a *CodedError with a formatted text.
func Errorf(code ErrorCode, format string, args ...any) error {
	return &CodedError{Code: code, Text: fmt.Sprintf(format, args...)}
}
