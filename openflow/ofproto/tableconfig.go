// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"fmt"
	"strconv"
	"strings"
)

// SetWords sets the settings that the words name: evict, noevict and limit:NUMBER. It returns an error for
// any other word.
func (c *TableConfig) SetWords(words []string) error {
	for _, word := range words {
		limit, isLimit := strings.CutPrefix(word, "limit:")
		switch {
		case word == "evict":
			c.Evict = true
		case word == "noevict":
			c.Evict = false
		case isLimit:
			n, err := strconv.ParseUint(limit, 10, 31)
			if err != nil {
				return fmt.Errorf("%s: expected limit:NUMBER", word)
			}
			c.Limit = int(n)
		default:
			return fmt.Errorf("%s: expected evict, noevict or limit:NUMBER", word)
		}
	}
	return nil
}

// Words returns the settings in the words that SetWords reads.
func (c TableConfig) Words() []string {
	words := []string{"limit:" + strconv.Itoa(c.Limit)}
	if c.Evict {
		words = append(words, "evict")
	}
	return words
}
