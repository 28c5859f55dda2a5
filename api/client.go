// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mdlayher/vsock"
)

// Client sends requests to one daemon. Several goroutines may use it.
type Client struct {
	// PortNumbers makes the daemon show ports by number instead of name in its responses.
	PortNumbers bool
	// Bridge is the bridge whose flows, groups, meters and addresses the requests are about; "": the
	// first bridge.
	Bridge string
	// Timeout limits the time of each request, except for streams; 0: no limit. The daemon may still
	// make a change whose request has timed out.
	Timeout time.Duration

	socket string
	http   *http.Client
}

// Refused is an error response of the daemon. Input is true if the request is wrong, and false if the
// request is right but could not be done. Unavailable is true if the daemon could not answer in time; a
// change may then still take effect.
type Refused struct {
	Message     string
	Input       bool
	Unavailable bool
}

func (e *Refused) Error() string { return e.Message }

// NewClient makes a client of the daemon. socket is the path of a unix socket, or
// vsock:CID:PORT. NewClient does not connect.
func NewClient(socket string) (*Client, error) {
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	if rest, ok := strings.CutPrefix(socket, "vsock:"); ok {
		cid, port, err := parseVsock(rest)
		if err != nil {
			return nil, err
		}
		dial = func(context.Context) (net.Conn, error) { return vsock.Dial(cid, port, nil) }
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx)
	}}
	return &Client{socket: socket, http: &http.Client{Transport: transport}}, nil
}

func parseVsock(text string) (cid, port uint32, err error) {
	c, p, ok := strings.Cut(text, ":")
	c64, err1 := strconv.ParseUint(c, 10, 32)
	p64, err2 := strconv.ParseUint(p, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, 0, &Refused{Message: fmt.Sprintf("socket vsock:%s: expected vsock:CID:PORT", text), Input: true}
	}
	return uint32(c64), uint32(p64), nil
}

// Do sends an HTTP request to the daemon and decodes the response into reply (nil: the response is
// ignored). request is the body, which is sent as JSON (nil: no body). The text of an error is one
// line. It is a *Refused if the daemon has responded with an error.
func (c *Client) Do(method, path string, query url.Values, request, reply any) error {
	body, err := c.roundTrip(method, path, query, request)
	if err != nil || reply == nil {
		return err
	}
	if err := json.Unmarshal(body, reply); err != nil {
		return fmt.Errorf("the daemon's answer to %s %s is malformed: %w", method, path, err)
	}
	return nil
}

// plainText is a request body that is sent as text, not as JSON.
type plainText string

func (c *Client) roundTrip(method, path string, query url.Values, request any) ([]byte, error) {
	var body io.Reader
	text, plain := request.(plainText)
	if plain {
		body = strings.NewReader(string(text))
	} else if request != nil {
		text, err := json.Marshal(request)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	if query == nil {
		query = url.Values{}
	}
	if c.PortNumbers {
		query.Set("names", "false")
	}
	c.addBridge(query)
	target := url.URL{Scheme: "http", Host: "weft", Path: path, RawQuery: query.Encode()}
	ctx := context.Background()
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, err
	}
	if plain {
		req.Header.Set("Content-Type", "text/plain")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if resp.StatusCode/100 == 2 {
		return answer, nil
	}
	return nil, refusal(method, path, resp, answer)
}

// unreachable returns an error for a failed connection. It names the daemon's socket and says what the
// user can do.
func (c *Client) unreachable(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("no daemon at %s: start weftd, or name its socket with --socket or WEFT_SOCKET", c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no process listens at %s: weftd is not running; start it", c.socket)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no permission for %s: run as root, or start weftd with --socket-group", c.socket)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the daemon at %s closed the connection during the answer: see its log, and try again", c.socket)
	}
	var op *url.Error
	if errors.As(err, &op) {
		err = op.Err
	}
	return fmt.Errorf("the daemon at %s does not answer: %v; is weftd running?", c.socket, err)
}

// Show returns the daemon's state.
func (c *Client) Show() (Show, error) {
	var s Show
	return s, c.Do(http.MethodGet, "/v1/show", nil, nil, &s)
}

// Log returns the settings of the daemon's log.
func (c *Client) Log() (Log, error) {
	var l Log
	return l, c.Do(http.MethodGet, "/v1/log", nil, nil, &l)
}

// SetLog changes those settings of the daemon's log that are not empty in l. It returns all settings.
func (c *Client) SetLog(l Log) (Log, error) {
	var now Log
	return now, c.Do(http.MethodPost, "/v1/log", nil, l, &now)
}

// On returns a client for another bridge of the same daemon. Both clients use the same connections.
func (c *Client) On(bridge string) *Client {
	other := *c
	other.Bridge = bridge
	return &other
}

func (c *Client) addBridge(query url.Values) {
	if c.Bridge != "" {
		query.Set("bridge", c.Bridge)
	}
}

// AddBridge adds a bridge.
func (c *Client) AddBridge(add AddBridge) (Bridge, error) {
	var b Bridge
	return b, c.Do(http.MethodPost, "/v1/bridges", nil, add, &b)
}

// ModBridge changes the controllers and the fail mode of the bridge c.Bridge.
func (c *Client) ModBridge(mod ModBridge) (Bridge, error) {
	var b Bridge
	return b, c.Do(http.MethodPatch, "/v1/bridges", nil, mod, &b)
}

// DelBridge deletes a bridge with its ports, flows, groups and meters. If ifExists is true, a missing
// bridge is no error.
func (c *Client) DelBridge(name string, ifExists bool) error {
	query := url.Values{}
	if ifExists {
		query.Set("if_exists", "true")
	}
	return c.Do(http.MethodDelete, "/v1/bridges/"+url.PathEscape(name), query, nil, nil)
}

// Bridges returns the bridges that have a name. The first bridge has one only if weftd has --name.
func (c *Client) Bridges() ([]Bridge, error) {
	var list []Bridge
	return list, c.Do(http.MethodGet, "/v1/bridges", nil, nil, &list)
}

// ShutDown stops the daemon and the engine, and so all ports. It returns the ids of the processes,
// which may still run for a moment.
func (c *Client) ShutDown() (ShuttingDown, error) {
	var s ShuttingDown
	return s, c.Do(http.MethodPost, "/v1/shutdown", nil, nil, &s)
}

// Ports lists all ports, or only the named port.
func (c *Client) Ports(name string) ([]Port, error) {
	var ports []Port
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	return ports, c.Do(http.MethodGet, "/v1/ports", query, nil, &ports)
}

// AddPort adds a port. options are of the form KEY=VALUE, one of them type=KIND.
func (c *Client) AddPort(name string, options []string) (Port, error) {
	return c.EnsurePort(AddPort{Name: name, Options: options})
}

// EnsurePort adds the port that newPort describes. If newPort.MayExist is set and the port exists with
// the same options, it returns the existing port.
func (c *Client) EnsurePort(newPort AddPort) (Port, error) {
	var p Port
	return p, c.Do(http.MethodPost, "/v1/ports", nil, newPort, &p)
}

// CheckPort returns the error with which AddPort would refuse the options, or nil. It adds nothing.
func (c *Client) CheckPort(name string, options []string) error {
	return c.Do(http.MethodPost, "/v1/ports", nil, AddPort{Name: name, Options: options, Check: true}, nil)
}

// CheckModPort returns the error with which ModPort would refuse the options, or nil. It changes no
// port.
func (c *Client) CheckModPort(name string, options []string) error {
	path, err := portPath(name)
	if err != nil {
		return err
	}
	return c.Do(http.MethodPatch, path, nil, ModPort{Options: options, Check: true}, nil)
}

// ModPort changes options of a port. An option KEY= without a value removes the option.
func (c *Client) ModPort(name string, options []string) (Port, error) {
	var p Port
	path, err := portPath(name)
	if err != nil {
		return p, err
	}
	return p, c.Do(http.MethodPatch, path, nil, ModPort{Options: options}, &p)
}

// portPath returns the API's path for requests about a port.
func portPath(name string) (string, error) {
	if strings.Trim(name, ".") == "" || strings.Contains(name, "/") { // such a name would make another path
		return "", &Refused{Message: fmt.Sprintf("%q: no such port", name), Input: true}
	}
	return "/v1/ports/" + name, nil
}

// DelPort deletes a port.
func (c *Client) DelPort(name string) error { return c.delPort(name, nil) }

// DelPortIfExists deletes the named port. It does nothing if there is no such port.
func (c *Client) DelPortIfExists(name string) error {
	return c.delPort(name, url.Values{"if_exists": {"true"}})
}

func (c *Client) delPort(name string, query url.Values) error {
	path, err := portPath(name)
	if err != nil {
		return err
	}
	return c.Do(http.MethodDelete, path, query, nil, nil)
}

// ChangeFlows adds, modifies or deletes flows, depending on change.Op.
func (c *Client) ChangeFlows(change ChangeFlows) (FlowsChanged, error) {
	var n FlowsChanged
	if change.File {
		return n, c.Do(http.MethodPost, "/v1/flows", url.Values{"op": {change.Op}}, plainText(change.Text), &n)
	}
	return n, c.Do(http.MethodPost, "/v1/flows", nil, change, &n)
}

// Flows lists the flows that matchText selects; an empty matchText selects all. Each sort key is a
// field name or "priority", with "-" in front for descending order. Without sort keys, flows are
// sorted by table and descending priority.
func (c *Client) Flows(matchText string, sortKeys ...string) ([]Flow, error) {
	var flows []Flow
	query := matchQuery(matchText)
	for _, key := range sortKeys {
		query.Add("sort", key)
	}
	return flows, c.Do(http.MethodGet, "/v1/flows", query, nil, &flows)
}

// DelFlows deletes the flows that matchText selects; an empty matchText selects all. If strict is
// true, only flows whose match and priority are exactly those of matchText are deleted.
func (c *Client) DelFlows(matchText string, strict bool) (FlowsChanged, error) {
	var n FlowsChanged
	query := matchQuery(matchText)
	if strict {
		query.Set("strict", "true")
	}
	return n, c.Do(http.MethodDelete, "/v1/flows", query, nil, &n)
}

// DiffFlows compares two files of flows, or one file with the flow tables.
func (c *Client) DiffFlows(diff DiffFlows) (FlowsDiffer, error) {
	var d FlowsDiffer
	return d, c.Do(http.MethodPost, "/v1/flows/diff", nil, diff, &d)
}

// Megaflows lists the entries of the workers' caches.
func (c *Client) Megaflows() ([]Megaflow, error) {
	var flows []Megaflow
	return flows, c.Do(http.MethodGet, "/v1/megaflows", nil, nil, &flows)
}

func matchQuery(match string) url.Values {
	query := url.Values{}
	if match != "" {
		query.Set("match", match)
	}
	return query
}
