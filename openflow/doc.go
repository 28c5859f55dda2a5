// SPDX-License-Identifier: Apache-2.0

// Package openflow implements the interface that an operator of Open vSwitch knows:
// ovs-ofctl's text for matches and actions, tables of rules, and the translation of a
// frame's key through these tables into one megaflow. It runs in the control process
// and may allocate.
//
// Files in the order of use: fields.go (the table of fields), flow.go, parse*.go,
// format.go, table.go, eviction.go, classifier.go and prefix.go (rules), group.go and
// meter.go, env.go, maclearn.go, translate.go, actionset.go, learn.go, commit.go.
//
// The owner of a Pipeline guards it, for example with a sync.RWMutex. Apply,
// ApplyGroups, ApplyMeters, ApplyLearned, Configure, Expire, RefreshLearnt,
// Finished.ReduceTimeouts and the Credit methods need exclusive access. All other
// methods, such as Translate, may run concurrently with other readers.
package openflow
