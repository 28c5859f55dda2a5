// Package openflow is what an operator of Open vSwitch knows: ovs-ofctl's text
// for matches and actions, tables of rules, and the translation of a frame's
// key through those tables into one megaflow. It runs in the control process
// and may allocate.
//
// Files in the order of use: fields.go (the one table all else is driven by),
// flow.go, parse*.go, format.go, table.go, eviction.go, classifier.go and
// prefix.go (rules), group.go and meter.go (the tables beside them), env.go,
// maclearn.go, translate.go, actionset.go, learn.go, commit.go.
//
// A Pipeline is guarded by its owner: Apply and its kin, Configure, Expire,
// RefreshLearnt and Rule.Credit need it alone, everything else, Translate first
// of all, may run concurrently with other readers (a sync.RWMutex around it
// does).
package openflow
