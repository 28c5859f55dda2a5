// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"weft/api"
)

// Codes of errors that are the plugin's own. The CNI specification reserves codes below 100.
const (
	codeRefused   uint = 100 // weftd did not make a correct change
	codeInterface uint = 101 // the veth pair, an address or a route
	codeIPAM      uint = 102 // the IPAM plugin cannot be executed, or its result is not usable
	codeDiffers   uint = 103 // CHECK found something else than ADD made
)

// failure returns an error with a code. Its text is one line.
func failure(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, oneLine(fmt.Sprintf(format, args...)), "")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// coded puts "subject" before the text of err. If err has a CNI error code, the result has the same
// code, otherwise the given one.
func coded(code uint, subject string, err error) error {
	var known *types.Error
	if errors.As(err, &known) {
		code = known.Code
	}
	return failure(code, "%s: %v", subject, err)
}

// joined returns the errors as one, with the code of the first one; nil if all are nil.
func joined(errs ...error) error {
	var texts []string
	var code uint
	for _, err := range errs {
		if err == nil {
			continue
		}
		var known *types.Error
		if errors.As(err, &known) && code == 0 {
			code = known.Code
		}
		texts = append(texts, err.Error())
	}
	if texts == nil {
		return nil
	}
	if code == 0 {
		code = types.ErrInternal
	}
	return failure(code, "%s", strings.Join(texts, "; "))
}

// ofWeftd converts the error of a request to weftd. The code tells the runtime whether to try again.
func ofWeftd(subject string, err error) error {
	var refused *api.Refused
	switch {
	case !errors.As(err, &refused), refused.Unavailable:
		return failure(types.ErrTryAgainLater, "%s: %v", subject, err)
	case refused.Input:
		return failure(types.ErrInvalidNetworkConfig, "%s: weftd refuses it: %v", subject, err)
	}
	return failure(codeRefused, "%s: weftd: %v", subject, err)
}
