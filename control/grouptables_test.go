// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"strings"
	"testing"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/control/workers/workertest"
	"weft/internal/waitfor"
)

func (f *fakes) group(op, text string) {
	f.t.Helper()
	if _, err := f.d.bridges.Megaflows().ChangeGroups(api.ChangeTable{Op: op, Text: text}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakes) megaflowActions() string {
	f.t.Helper()
	list := f.d.bridges.Megaflows().DumpMegaflows(pipeline.ByName)
	if len(list) != 1 {
		return ""
	}
	return list[0].Actions
}

// failover is a group over tunnels of flowTunnels.
const failover = "group_id=1,type=ff,bucket=watch_port:p2,set_field:192.0.2.2->tun_dst,output:p2,bucket=watch_port:p3,set_field:192.0.2.3->tun_dst,output:p3"

// flowTunnels adds tunnel ports whose remotes flows choose. Such ports are always up.
func (f *fakes) flowTunnels(names ...string) {
	f.t.Helper()
	for _, name := range names {
		if _, err := f.d.ports.Add(name, []string{"type=vxlan", "vni=" + name[1:], "remote=flow"}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// A group does not use buckets whose watched port is down. A change of groups
// revalidates megaflows.
func TestFailover(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	f.flowTunnels("p2", "p3")
	f.group("add", failover)
	f.add("in_port=p1,actions=group:1")
	w := f.worker()
	key := workertest.UDPKey(1, 1, 2, 9)
	w.Frame(key, 100)
	f.settle()
	first := f.megaflowActions()
	tx := f.d.configuration.Begin()
	f.d.ports.Fail(tx, 2, errors.New("unplugged"))
	tx.Commit()
	waitfor.True(t, "the megaflow of a dead bucket is removed", func() bool {
		known := true
		w.On(func() { _, known = w.Lookup(&key) })
		return !known
	})
	w.Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	if second := f.megaflowActions(); first == "" || second == "" || first == second {
		t.Errorf("actions %q, and %q once the port has failed", first, second)
	}
	if _, err := f.d.ports.Modify("p3", []string{"vni=3", "remote=192.0.2.3"}); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "a tunnel without a route is as dead as a failed port", func() bool {
		w.Frame(workertest.UDPKey(1, 1, 2, 9), 100)
		f.settle()
		return f.megaflowActions() == "drop(flow-drop)"
	})
	f.group("modify", "group_id=1,type=all")
	w.Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	if got := f.megaflowActions(); got != "drop(flow-drop)" {
		t.Errorf("an empty group: %q", got)
	}
}

// A restarted control process knows at once which watched ports are down.
func TestFailoverOutlivesControl(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	if _, err := f.d.ports.Add("p2", []string{"type=vxlan", "vni=2", "remote=239.1.1.1", "dev=nosuchdevice"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.d.ports.Add("p3", []string{"type=vxlan", "vni=3", "remote=192.0.2.3"}); err != nil {
		t.Fatal(err)
	}
	f.flowTunnels("p4")
	f.group("add", strings.ReplaceAll(failover, "p3", "p4")+",bucket=watch_port:p3,output:p3")
	f.add("in_port=p1,actions=group:1")
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	was := f.megaflowActions()
	f.die()
	f.begin()
	if is := f.megaflowActions(); was == "" || was == "drop(flow-drop)" || is != was {
		t.Errorf("actions %q, and %q after control was started again", was, is)
	}
}

// Groups and buckets count every frame exactly once, with or without a megaflow, and
// across changes of the tables.
func TestGroupsCount(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(3)
	f.group("add", "group_id=1,type=all,bucket=output:p2,bucket=output:p3")
	f.group("add", "group_id=2,type=indirect,bucket=group:1")
	f.add("in_port=p1,actions=group:2")
	w := f.worker()
	for i := range uint32(50) {
		w.Frame(workertest.UDPKey(1, 1, 2, 9), 100)
		if i == 20 {
			f.settle()
			f.add("in_port=p1,udp,actions=group:2")
		}
	}
	f.settle()
	list, err := f.d.bridges.Megaflows().ListGroups("", pipeline.ByName)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, g := range list {
		if g.Packets != 50 || g.Bytes != 5000 || len(g.Buckets) == 0 {
			t.Errorf("group %d: %d frames, %d bytes", g.ID, g.Packets, g.Bytes)
		}
		for i, b := range g.Buckets {
			if b.Packets != 50 || b.Bytes != 5000 {
				t.Errorf("group %d, bucket %d: %d frames, %d bytes", g.ID, i, b.Packets, b.Bytes)
			}
		}
	}
	if list[0].Flows != 0 || list[1].Flows != 2 {
		t.Errorf("%d and %d flows name them", list[0].Flows, list[1].Flows)
	}
	f.group("modify", "group_id=1,type=all,bucket=output:p3")
	if list, _ := f.d.bridges.Megaflows().ListGroups("group_id=1", pipeline.ByName); list[0].Packets != 0 || len(list[0].Buckets) != 1 {
		t.Errorf("changed: %+v", list[0])
	}
}

// Groups and meters are restored together with the flows that use them. Deleting a group or a meter
// deletes these flows.
func TestGroupsAndMetersStay(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.group("add", "group_id=7,type=indirect,bucket=output:p2")
	if _, err := f.d.bridges.Megaflows().ChangeMeters(api.ChangeTable{Op: "add", File: true, Text: "meter=3,pktps,band=type=drop,rate=5\nmeter=4 kbps burst bands=type=drop rate=9 burst_size=8"}); err != nil {
		t.Fatal(err)
	}
	f.add("in_port=p1,actions=meter:4,group:7", "in_port=p2,actions=group:7", "priority=1,actions=drop")
	f.end()
	f.begin()
	groups, err := f.d.bridges.Megaflows().ListGroups("", pipeline.ByName)
	if err != nil || len(groups) != 1 || groups[0].Line != "group_id=7,type=indirect,bucket=bucket_id:0,actions=output:p2" {
		t.Errorf("groups %+v, %v", groups, err)
	}
	meters, err := f.d.bridges.Megaflows().ListMeters("meter=4")
	if err != nil || len(meters) != 1 || meters[0].Flows != 1 || meters[0].Line != "meter=4 kbps burst bands=type=drop rate=9 burst_size=8" {
		t.Errorf("meters %+v, %v", meters, err)
	}
	if n := len(f.counts()); n != 3 {
		t.Errorf("%d flows after a restart, want 3", n)
	}
	n, err := f.d.bridges.Megaflows().ChangeMeters(api.ChangeTable{Op: "delete", Text: "meter=4"})
	if err != nil || n.Flows != 1 || len(f.counts()) != 2 {
		t.Errorf("deleting a meter: %+v, %v, %d flows left", n, err, len(f.counts()))
	}
	for _, tt := range []struct{ op, text, want string }{
		{"add", "group_id=7,type=all", "group 7"}, {"modify", "group_id=9,type=all", "group 9"}, {"fly", "", "expected add"}, {"add", "group_id=8,type=all,bucket=fly", "fly"},
	} {
		var input *usererr.Error
		if _, err := f.d.bridges.Megaflows().ChangeGroups(api.ChangeTable{Op: tt.op, Text: tt.text}); !errors.As(err, &input) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want ...%s...", tt.op, tt.text, err, tt.want)
		}
	}
	f.group("delete", "")
	f.end()
	f.begin()
	if groups, _ := f.d.bridges.Megaflows().ListGroups("", pipeline.ByName); len(groups) != 0 || len(f.counts()) != 1 {
		t.Errorf("%d groups and %d flows after the delete of all", len(groups), len(f.counts()))
	}
}
