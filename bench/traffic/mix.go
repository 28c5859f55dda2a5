// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"strconv"
	"strings"
)

// Mix is a list of frame sizes, each with the number of its frames in a round. Frames of all sizes
// follow each other in a fixed order.
type Mix []Share

// Share is a frame size in bytes, and the number of frames with this size in each round of a Mix.
type Share struct {
	Size  int `json:"size"`
	Count int `json:"count"`
}

// imix is the simple IMIX: IP packets of 40, 576 and 1,500 bytes in the proportion 7:4:1, given as
// sizes of Ethernet frames. The smallest has 64 bytes, because a frame must have room for a stamp.
var imix = Mix{{64, 7}, {590, 4}, {1514, 1}}

// maxRound is the largest number of frames in a round of a Mix.
const maxRound = 1024

// ParseMix parses a single size ("64"), a list of sizes with proportions
// ("64:7,590:4,1514:1"), or "imix".
func ParseMix(text string) (Mix, error) {
	if text == "imix" {
		return imix, nil
	}
	var m Mix
	round := 0
	for _, word := range strings.Split(text, ",") {
		size, count, many := strings.Cut(word, ":")
		share := Share{Count: 1}
		var err error
		if share.Size, err = strconv.Atoi(size); err == nil && many {
			share.Count, err = strconv.Atoi(count)
		}
		if err != nil || share.Size < 1 || share.Count < 1 || share.Count > maxRound {
			return nil, fmt.Errorf("size %q; expected a number of bytes, as in 64, a list with proportions, as in 64:7,590:4,1514:1, or imix", word)
		}
		round += share.Count
		m = append(m, share)
	}
	if round > maxRound {
		return nil, fmt.Errorf("sizes %q: %d frames a round; expected at most %d", text, round, maxRound)
	}
	return m, nil
}

// String returns the mix in the syntax of ParseMix.
func (m Mix) String() string {
	var words []string
	for _, s := range m {
		word := strconv.Itoa(s.Size)
		if len(m) > 1 {
			word += ":" + strconv.Itoa(s.Count)
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

func (m Mix) round() []int {
	total := 0
	for _, s := range m {
		total += s.Count
	}
	credit := make([]int, len(m))
	sizes := make([]int, 0, total)
	for range total {
		best := 0
		for i, s := range m {
			if credit[i] += s.Count; credit[i] > credit[best] {
				best = i
			}
		}
		credit[best] -= total
		sizes = append(sizes, m[best].Size)
	}
	return sizes
}

func (m Mix) within(lo, hi int) error {
	for _, s := range m {
		if s.Size < lo || s.Size > hi || s.Count < 1 || s.Count > maxRound {
			return fmt.Errorf("size %d; expected %d to %d bytes", s.Size, lo, hi)
		}
	}
	return nil
}

func (m Mix) largest() int {
	n := 0
	for _, s := range m {
		n = max(n, s.Size)
	}
	return n
}

func (m Mix) shorter(n int) Mix {
	short := make(Mix, len(m))
	for i, s := range m {
		short[i] = Share{Size: s.Size - n, Count: s.Count}
	}
	return short
}
