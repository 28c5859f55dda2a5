// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"strconv"
	"strings"

	"weft/api"
	"weft/control/usererr"
	"weft/openflow"
)

// settings of flow tables: the limit of flows, and eviction at the limit

// ModTable changes all given settings of flow tables, or none on an error. It removes
// no flow.
func (pl *Pipeline) ModTable(mod api.ModTable) error {
	if mod.Table < -1 || mod.Table >= openflow.Tables {
		return usererr.Errorf("table %d: expected a table from 0 to %d, or all", mod.Table, openflow.Tables-1)
	}
	if mod.Table == openflow.CentralTable {
		return usererr.Errorf("table %d: belongs to weft-central; expected another table", mod.Table)
	}
	pl.change.Lock()
	defer pl.change.Unlock()
	var configs [openflow.Tables]openflow.TableConfig
	for t := range configs {
		configs[t], _ = pl.tables.Config(uint8(t)) // changes only under the lock of changes
		if mod.Table == t || mod.Table == -1 && t != openflow.CentralTable {
			if err := setTable(&configs[t], mod.Settings); err != nil {
				return err
			}
		}
	}
	pl.mu.Lock()
	for t := range configs {
		pl.tables.Configure(uint8(t), configs[t])
	}
	pl.mu.Unlock()
	if err := pl.store.SaveTableConfigs(tableConfigTexts(&configs)); err != nil {
		return fmt.Errorf("the change is in force but could not be saved: %w", err)
	}
	return nil
}

func setTable(c *openflow.TableConfig, settings []string) error {
	for _, s := range settings {
		limit, isLimit := strings.CutPrefix(s, "limit:")
		switch {
		case s == "evict":
			c.Evict = true
		case s == "noevict":
			c.Evict = false
		case isLimit:
			n, err := strconv.ParseUint(limit, 10, 31)
			if err != nil {
				return usererr.Errorf("%s: expected limit:NUMBER", s)
			}
			c.Limit = int(n)
		default:
			return usererr.Errorf("%s: expected evict, noevict or limit:NUMBER", s)
		}
	}
	return nil
}

// tableConfigTexts returns each table's settings as words for setTable. Default
// settings are left out.
func tableConfigTexts(configs *[openflow.Tables]openflow.TableConfig) map[uint32]string {
	texts := map[uint32]string{}
	for t, c := range configs {
		if c == (openflow.TableConfig{}) {
			continue
		}
		texts[uint32(t)] = "limit:" + strconv.Itoa(c.Limit)
		if c.Evict {
			texts[uint32(t)] += " evict"
		}
	}
	return texts
}

func (pl *Pipeline) loadTableConfigs(texts map[uint32]string) {
	for t, text := range texts {
		var c openflow.TableConfig
		if err := setTable(&c, strings.Fields(text)); err != nil || t >= openflow.Tables {
			pl.log.Error("saved settings of a table are left out", "table", t, "settings", text, "error", err)
			continue
		}
		pl.tables.Configure(uint8(t), c)
	}
}

func (pl *Pipeline) ListTables() []api.Table {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	list := []api.Table{}
	for t := range openflow.Tables {
		c, n := pl.tables.Config(uint8(t))
		if n > 0 || c != (openflow.TableConfig{}) {
			list = append(list, api.Table{Table: t, Flows: n, Limit: c.Limit, Evict: c.Evict})
		}
	}
	return list
}
