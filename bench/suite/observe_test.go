// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// bookSamples counts each sample for a component, as time in user space or in the kernel.
func TestBookSamples(t *testing.T) {
	const text = `   101  ffffffff81c0012a entry_SYSCALL_64_after_hwframe
   101  ffffffff81c00111 syscall_return_via_sysret
   101  ffffffff813b0001 ep_poll
   101  ffffffff819b2000 vxlan_xmit_one
   101            46d0a1 runtime.memmove
   102  ffffffff81c0012a do_syscall_64
     0  ffffffff81bf0000 pv_native_safe_halt
   999  ffffffff81bf0000 entry_SYSCALL_64
garbage

   101  xyz what
`
	got := bookSamples(text, map[int]string{101: "leader", 102: "client"})
	if len(got) != 2 || *got["leader"] != (samples{user: 2, entry: 2, waiting: 1, kernel: 1}) || *got["client"] != (samples{entry: 1}) {
		t.Errorf("%+v %+v", got["leader"], got["client"])
	}
	for name, want := range map[string]string{"follower 2": "followers", "leader": "leader", "engine 1": "engines"} {
		if got := component(name); got != want {
			t.Errorf("%s is of %s", name, got)
		}
	}
}

// addCalls ignores system calls that it does not know and counts without a value.
func TestAddCalls(t *testing.T) {
	calls := map[string]uint64{"write": 1}
	const text = "# started\n\n120,,raw_syscalls:sys_enter,1,100.00,,\n7,,syscalls:sys_enter_write,1,100.00,,\n<not supported>,,syscalls:sys_enter_sendto,0,100.00,,\n"
	if !addCalls(calls, text) || calls[allCalls] != 120 || calls["write"] != 8 || len(calls) != 2 {
		t.Errorf("%v", calls)
	}
	if addCalls(calls, "<not counted>,,raw_syscalls:sys_enter,0,0,,") {
		t.Error("what was not counted passes for a count")
	}
}
