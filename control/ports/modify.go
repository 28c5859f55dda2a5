// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"weft/api"
	"weft/control/change"
	"weft/control/store"
	"weft/control/usererr"
)

// changeable maps each kind of port to its own options that can change while the port forwards. The
// options for VLANs, state, queues and weight can always change. A tunnel has no device, so all its
// options can change.
var changeable = map[string][]string{
	kindVhost: {"vni", "id", "mac", "addresses"},
	kindTap:   {bondOption, "vni", "id", "addresses", "mtu"},
}

// mtuSetter is a driver that can change the MTU of its device while frames pass.
type mtuSetter interface {
	setMTU(mtu int) error
}

// Modify changes options of a port. The port keeps its number, its statistics and its
// connection to the guest. A word KEY= without a value removes an option. On an error
// nothing has changed.
func (ps *Ports) Modify(name string, words []string) (api.Port, error) {
	return ps.changeOne(func(tx *change.Tx, _ func(error)) (*switchPort, error) { return ps.modify(tx, name, words) })
}

// ModifyIn changes options of a port like Modify, as a part of the transaction tx. onFailure gets the
// error if the commit cannot save the change.
func (ps *Ports) ModifyIn(tx *change.Tx, name string, words []string, onFailure func(error)) error {
	if _, err := ps.modify(tx, name, words); err != nil {
		return err
	}
	tx.Undo(onFailure)
	return nil
}

// CheckModify returns the error with which Modify would refuse the words.
func (ps *Ports) CheckModify(name string, words []string) error {
	_, err := change.Read(ps.configuration, func(tx *change.Tx) (next *switchPort, err error) {
		_, next, err = ps.checkedChange(name, words)
		return next, err
	})
	return err
}

// checkedChange returns a port, and a port with the changed options that replaces it.
func (ps *Ports) checkedChange(name string, words []string) (p, next *switchPort, err error) {
	p = ps.portByName(name)
	switch {
	case p == nil:
		return nil, nil, ps.pipeline.View().NoPort(name)
	case p == ps.central.tunnel:
		return nil, nil, usererr.Errorf("%s: weft-central's tunnel; expected another port", name)
	}
	options, err := mergedOptions(p.explicit, words)
	if err != nil {
		return nil, nil, err
	}
	next, err = ps.newPort(store.Port{Number: p.saved.Number, InFlows: p.saved.InFlows, Name: name, Options: ps.withoutFirst(options)})
	if err != nil {
		return nil, nil, err
	}
	if err := checkChangeable(p, next); err != nil {
		return nil, nil, err
	}
	return p, next, ps.conflict(next)
}

func (ps *Ports) modify(tx *change.Tx, name string, words []string) (*switchPort, error) {
	p, next, err := ps.checkedChange(name, words)
	if err != nil {
		return nil, err
	}
	if maps.Equal(p.explicit, next.explicit) {
		return p, nil
	}
	if err := ps.replacePort(tx, p, next); err != nil {
		return nil, err
	}
	tx.At(change.Tell, next, func() error {
		if ps.byNumber[p.saved.Number] == next { // false if the commit has undone the change
			ps.log.Info("port changed", "port", name, "options", strings.Join(words, " "))
		}
		return nil
	})
	return next, nil
}

// mergedOptions returns the port's options as words, after it has applied the changes in "words".
// Options with their default values are left out.
func mergedOptions(explicit map[string]string, words []string) ([]string, error) {
	merged, seen := maps.Clone(explicit), map[string]bool{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case !ok || key == "":
			return nil, usererr.Errorf("%s: expected KEY=VALUE, or KEY= for the default", word)
		case seen[key]:
			return nil, usererr.Errorf("%s: option %s is given twice", word, key)
		case key == "type":
			return nil, usererr.Errorf("%s: a port keeps its type; expected del-port and add-port", word)
		}
		if _, had := explicit[key]; value == "" && !had && len(words) == 1 {
			return nil, usererr.Errorf("%s=: the port has no option %s", key, key)
		}
		seen[key] = true
		if merged[key] = value; value == "" || value == usualValues[key] {
			delete(merged, key)
		}
	}
	var options []string
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		options = append(options, key+"="+merged[key])
	}
	return options, nil
}

func checkChangeable(p, next *switchPort) error {
	if p.values[requestOption] != next.values[requestOption] {
		return usererr.Errorf("%s=: a port keeps its number; expected del-port and add-port", requestOption)
	}
	if p.isTunnel() {
		return nil
	}
	can := slices.Concat(changeable[p.kind], namesOf(p.kind, vlanOptions), namesOf(p.kind, adminOptions), namesOf(p.kind, qosOptions),
		namesOf(p.kind, weightOptions))
	sort.Strings(can)
	for _, key := range slices.Sorted(maps.Keys(mergedKeys(p.values, next.values))) {
		if p.values[key] != next.values[key] && !slices.Contains(can, key) {
			if len(can) == 0 {
				return usererr.Errorf("%s=: no option of a port of type=%s can change; expected del-port and add-port", key, p.kind)
			}
			return usererr.Errorf("%s=: cannot change while the port exists; expected one of %s, or del-port and add-port", key, strings.Join(can, ", "))
		}
	}
	return nil
}

// namesOf returns the names of those options in "table" that a kind of port has.
func namesOf(kind string, table optionTable) []string {
	k := portKinds[kind]
	all := k.allOptions()
	var names []string
	for name := range table {
		if _, has := all[name]; has {
			names = append(names, name)
		}
	}
	return names
}

func mergedKeys(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// replacePort replaces the port p by "next", which has the changed options. A port with a device
// keeps its driver. mtu= is the only changeable option that concerns the driver.
func (ps *Ports) replacePort(tx *change.Tx, p, next *switchPort) error {
	if p.isTunnel() {
		if err := next.driver.open(nil); err != nil {
			return err
		}
	} else {
		next.driver = p.driver
		if err := changeMTU(p, next.values["mtu"]); err != nil {
			return err
		}
	}
	next.opened, next.lost, next.added, next.fresh = p.opened || p.isTunnel(), p.lost, p.added, p.fresh
	if !p.isTunnel() {
		next.problem.Store(p.problem.Load())
	}
	next.info.Down = p.info.Down // updateLiveness finds out later whether this has changed
	if next.info.BFD {
		next.info.Lost = stillRemotes(p.info.Lost, next.info.Remotes)
	}
	unused := p
	ps.byNumber[p.saved.Number] = next
	ps.touch(tx).replaced(p.saved.Number)
	if !next.fresh {
		ps.store.SavePort(tx, next.saved)
	}
	if p.isTunnel() {
		tx.At(change.Close, next, func() error { unused.driver.close(); return nil })
	}
	tx.Undo(func(error) {
		unused = next
		ps.byNumber[p.saved.Number] = p
		ps.touch(tx).replaced(p.saved.Number)
		if !p.isTunnel() {
			if err := changeMTU(next, p.values["mtu"]); err != nil {
				ps.log.Error("the MTU of a change that was taken back stays", "port", p.saved.Name, "error", err)
			}
		}
	})
	return nil
}

// stillRemotes returns those of the lost remotes that the port still has. It returns none if all of
// the port's remotes are lost.
func stillRemotes(lost, remotes []netip.Addr) []netip.Addr {
	lost = slices.DeleteFunc(slices.Clone(lost), func(a netip.Addr) bool { return !slices.Contains(remotes, a) })
	if len(lost) == len(remotes) {
		return nil
	}
	return lost
}

// changeMTU sets the MTU of the port's device to the new value of mtu=, if the value has changed.
func changeMTU(p *switchPort, mtu string) error {
	n, _ := strconv.Atoi(mtu) // the value is valid, because the option table has checked it
	device, can := p.driver.(mtuSetter)
	switch {
	case mtu == p.values["mtu"] || !p.opened:
		return nil
	case n == 0:
		return usererr.Errorf("mtu=: expected a number; the device keeps no default")
	case !can:
		return usererr.Errorf("mtu=%d: cannot change while the port exists; expected del-port and add-port", n)
	}
	return device.setMTU(n)
}
