package iovec

// Pace is how often a queue reads in one batch. To know that nothing is left takes
// a call that finds nothing, for which the first frame after a while would have to
// wait: so that one is taken alone, and the next batch reads to the end. The zero
// value is ready for use.
type Pace struct {
	reads int  // of this batch
	many  bool // the batch may be of more than one
}

// Begin begins a batch.
func (p *Pace) Begin() { p.reads = 0 }

// More tells whether the batch may read once more, and counts that.
func (p *Pace) More() bool {
	if p.reads > 0 && !p.many {
		p.many = true // from the next batch on
		return false
	}
	p.reads++
	return true
}

// Empty says that the last read found nothing.
func (p *Pace) Empty() { p.many = p.reads > 2 }
