// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// stream sends a GET request. It calls ready when the daemon has accepted the request, then handle
// with each JSON value of the response. It returns nil when ctx or the response ends.
func stream[T any](ctx context.Context, c *Client, path string, query url.Values, ready func(), handle func(*T) error) error {
	if query == nil {
		query = url.Values{}
	}
	c.addBridge(query)
	target := url.URL{Scheme: "http", Host: "weft", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		answer, _ := io.ReadAll(resp.Body)
		return refusal(http.MethodGet, path, resp, answer)
	}
	if ready != nil {
		ready()
	}
	dec := json.NewDecoder(resp.Body)
	for {
		v := new(T)
		switch err := dec.Decode(v); {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return c.unreachable(err)
		case err != nil:
			return fmt.Errorf("the daemon's answer to GET %s is malformed: %w", path, err)
		}
		if err := handle(v); err != nil {
			return err
		}
	}
}

func refusal(method, path string, resp *http.Response, answer []byte) error {
	var e Error
	if json.Unmarshal(answer, &e) != nil || e.Error == "" {
		e.Error = fmt.Sprintf("%s %s: the daemon answered %s", method, path, resp.Status)
	}
	return &Refused{Message: e.Error, Input: resp.StatusCode == http.StatusBadRequest,
		Unavailable: resp.StatusCode == http.StatusServiceUnavailable}
}
