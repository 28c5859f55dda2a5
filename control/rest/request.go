// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"weft/control/access"
	"weft/control/pipeline"
	"weft/control/tables"
	"weft/control/usererr"
)

// withBody returns a request handler that decodes the request's body, a T of package api in JSON, and
// passes it to fn.
func withBody[T any](fn func(r *http.Request, body *T) (any, error)) answer {
	return func(r *http.Request) (any, error) {
		var t T
		if err := body(r, &t); err != nil {
			return nil, err
		}
		return fn(r, &t)
	}
}

// onTables returns a request handler that calls fn with the flow tables of the bridge that the request
// names.
func (h *Handlers) onTables(fn func(r *http.Request, t *tables.Tables) (any, error)) answer {
	return func(r *http.Request) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return fn(r, b.Tables)
	}
}

// withBodyOnTables returns a request handler that decodes the request's body, and calls fn with the
// body and the flow tables of the bridge that the request names.
func withBodyOnTables[T, Result any](h *Handlers, fn func(t *tables.Tables, body T) (Result, error)) answer {
	return withBody(func(r *http.Request, body *T) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return fn(b.Tables, *body)
	})
}

// withWords returns a request handler that tells fn how the result shows ports: by name, or by number
// if the request has names=false.
func withWords(fn func(r *http.Request, words pipeline.PortWords) (any, error)) answer {
	return func(r *http.Request) (any, error) {
		switch word := r.URL.Query().Get("names"); word {
		case "", "true":
			return fn(r, pipeline.ByName)
		case "false":
			return fn(r, pipeline.ByNumber)
		default:
			return nil, usererr.Errorf("names=%s: expected true or false", word)
		}
	}
}

// deletion returns a request handler that deletes the object with the name in the request's path. If
// the request has if_exists=true, an object that does not exist is no error.
func deletion(exists func(name string) bool, remove func(name string) error) answer {
	return func(r *http.Request) (any, error) {
		ifExists, err := truthOf(r.URL.Query(), "if_exists")
		if err != nil {
			return nil, err
		}
		if name := r.PathValue("name"); !ifExists || exists(name) {
			return struct{}{}, remove(name)
		}
		return struct{}{}, nil
	}
}

// truthOf returns the truth value of a request's parameter; false if it is missing.
func truthOf(q url.Values, name string) (bool, error) {
	switch word := q.Get(name); word {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, usererr.Errorf("%s=%s: expected true or false", name, word)
	}
}

// numberOf returns the value of a request's parameter, a number of at most 32 bits; 0 if the
// parameter is missing.
func numberOf(q url.Values, name string) (uint64, error) {
	word := q.Get(name)
	if word == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return 0, usererr.Errorf("%s=%s: expected a number", name, word)
	}
	return n, nil
}

// body decodes the JSON body of a request into dst. Its errors name the wrong field and the
// expected type.
func body(r *http.Request, dst any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(dst); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			field := ""
			if kind.Field != "" {
				field = kind.Field + ": "
			}
			return usererr.Errorf("body: %sexpected %s, not %s", field, jsonWord(kind.Type), kind.Value)
		}
		return bodyError(err, "JSON as in package api")
	}
	return nil
}

// jsonWord describes, for an error, the JSON values that a field of type t takes.
func jsonWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float64:
		return "a number"
	}
	return fmt.Sprintf("a whole number of at most %d bits", t.Bits())
}

// bodyError returns the error for the client about a body that cannot be read or decoded.
func bodyError(err error, expected string) error {
	var limit *access.LimitError
	if errors.As(err, &limit) {
		return &access.LimitError{Status: limit.Status, Message: "body: " + limit.Message}
	}
	return usererr.Errorf("body: %s; expected %s", strings.TrimPrefix(err.Error(), "json: "), expected)
}

// lateBody replaces err if the client did not send its whole body in time. The new error tells
// the client that nothing has changed.
func lateBody(r *http.Request, err error) error {
	var late *access.TooLong
	if !errors.As(err, &late) || !access.AbandonBody(r) {
		return err
	}
	return &access.LimitError{Status: http.StatusRequestTimeout,
		Message: "body: the client has not sent all of it in time, and nothing was changed; send the request again, without pauses"}
}
