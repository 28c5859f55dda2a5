// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"

	"weft/api"
	"weft/control/access"
	"weft/control/usererr"
)

// notFound is the error of a request that no route answers.
type notFound struct{ message string }

func (e *notFound) Error() string { return e.message }

// unavailable is the error of a request that may succeed later.
type unavailable struct{ message string }

func (e *unavailable) Error() string { return e.message }

// reply sends the result of a request as JSON, or the text of err with the HTTP status that its
// type has.
func (h *Handlers) reply(w http.ResponseWriter, result any, err error) {
	status := http.StatusOK
	if err != nil {
		var input *usererr.Error
		var missing *notFound
		var limit *access.LimitError
		var late *access.TooLong
		var starting *unavailable
		switch {
		case errors.As(err, &limit):
			status = limit.Status
		case errors.As(err, &input):
			status = http.StatusBadRequest
		case errors.As(err, &missing):
			status = http.StatusNotFound
		case errors.As(err, &starting):
			status = http.StatusServiceUnavailable
		case errors.As(err, &late):
			status = http.StatusServiceUnavailable
			h.Log.Error("request is abandoned", "error", err)
		case errors.Is(err, context.Canceled): // the client has closed the connection
			status = http.StatusInternalServerError
		default:
			status = http.StatusInternalServerError
			h.Log.Error("request failed", "error", err)
		}
		result = api.Error{Error: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeJSON(w, result) // error ignored: the client has closed the connection
}

const listChunk = 1024

// writeJSON encodes v like json.Encoder, but encodes a long list in chunks. The text of a
// million flows at once would take hundreds of megabytes.
func writeJSON(w io.Writer, v any) error {
	list := reflect.ValueOf(v)
	if list.Kind() != reflect.Slice || list.Len() <= listChunk || list.Type().Elem().Kind() == reflect.Uint8 {
		return json.NewEncoder(w).Encode(v)
	}
	for from := 0; from < list.Len(); from += listChunk {
		text, err := json.Marshal(list.Slice(from, min(from+listChunk, list.Len())).Interface())
		if err != nil {
			return err
		}
		if from > 0 {
			text[0] = ',' // all chunks but the first begin with a comma instead of the bracket
		}
		if from+listChunk < list.Len() {
			text = text[:len(text)-1]
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err := w.Write([]byte("\n"))
	return err
}
