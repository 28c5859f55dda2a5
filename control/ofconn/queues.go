// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"fmt"
	"slices"

	"weft/openflow"
	"weft/openflow/ofp"
)

// queues returns the queues that the request selects. It refuses unknown ports and
// queues.
func (c *Conn) queues(r *ofp.Request) (ofp.QueueSelection, []ofp.Queue, error) {
	s, err := ofp.DecodeQueueSelection(r)
	if err != nil {
		return s, nil, err
	}
	ports := c.service.setup.Switch.Ports()
	if !s.AllPorts && !slices.ContainsFunc(ports, func(p Port) bool { return p.No == s.Port }) {
		return s, nil, refused(openflow.ErrQueueBadPort, fmt.Sprintf("queues of port %d: no such port", s.Port))
	}
	list := slices.DeleteFunc(c.service.setup.Switch.Queues(), func(q ofp.Queue) bool { return !s.Has(&q) })
	if len(list) == 0 && !s.AllQueues {
		return s, nil, refused(openflow.ErrQueueBadQueue, fmt.Sprintf("queue %d: no such queue", s.Queue))
	}
	return s, list, nil
}

func (c *Conn) eachQueue(r *ofp.Request, entry func(b []byte, q *ofp.Queue) []byte) error {
	_, list, err := c.queues(r)
	if err != nil {
		return err
	}
	reply := ofp.NewReply(r)
	for i := range list {
		reply.Add(func(b []byte) []byte { return entry(b, &list[i]) })
	}
	return c.writeAll(reply)
}

func (c *Conn) queueStats(r *ofp.Request) error {
	return c.eachQueue(r, func(b []byte, q *ofp.Queue) []byte { return ofp.AppendQueueStats(b, c.version, q) })
}

func (c *Conn) queueDesc(r *ofp.Request) error {
	return c.eachQueue(r, func(b []byte, q *ofp.Queue) []byte { return ofp.AppendQueueDesc(b, q) })
}

// queueConfig lists the queues of one port. OpenFlow 1.0 has no request about all ports.
func (c *Conn) queueConfig(r *ofp.Request) error {
	s, list, err := c.queues(r)
	if err != nil {
		return err
	}
	if s.AllPorts && c.version == openflow.Version10 {
		return refused(openflow.ErrQueueBadPort, "queues: expected the number of a port")
	}
	port := s.Port
	if s.AllPorts {
		port = openflow.PortNone
	}
	return c.write(ofp.AppendQueueConfig(r, port, list))
}
