# Everything runs from a clean clone on Debian with Go; scripts/setup installs
# the packages that are missing, and the rest needs root for namespaces, XDP and
# taps.

# .cache/programs has programs that scripts/setup fetches without their packages.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin:$(CURDIR)/.cache/programs/usr/bin
# One static binary, without cgo. Only the race detector needs it.
export CGO_ENABLED := 0

# In a clone that belongs to somebody else git refuses, and go build with it.
ifneq ($(shell git status --porcelain >/dev/null 2>&1 && echo ok),ok)
export GOFLAGS += -buildvcs=false
endif

UNIT := $$(go list ./... | grep -v '/e2e\|/bench/attack$$')
FUZZTIME ?= 20s

# How many packages are tested at a time.
ABREAST ?= 6

.PHONY: build install deb release docs demo demo-central test test-long lint vuln arm64 unit race e2e nic test-nic bench-nic attack bench benchstat fuzz setup clean

# Where git refuses, or the source is no clone, COMMIT names the commit.
COMMIT ?= $(shell git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null)
LDFLAGS ?= -X weft/internal/buildinfo.commit=$(COMMIT)

BIN ?= bin

build:
	go build -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/weftd ./cmd/weft ./cmd/weft-central ./cmd/weft-cni

# Where install puts its files. DESTDIR is the root of a package.
PREFIX ?= /usr/local
SBINDIR ?= $(PREFIX)/sbin
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Plugins of container runtimes. Debian's and Fedora's directories differ from upstream's /opt/cni/bin.
CNIDIR ?= $(PREFIX)/lib/cni

# An existing configuration stays.
install: build
	install -d $(DESTDIR)$(SYSCONFDIR)/weft
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BIN)/weft
	install -D -m 755 -t $(DESTDIR)$(SBINDIR) $(BIN)/weftd $(BIN)/weft-central
	install -D -m 755 -t $(DESTDIR)$(CNIDIR) $(BIN)/weft-cni
	[ -e $(DESTDIR)$(SYSCONFDIR)/weft/weft.toml ] || install -m 644 -t $(DESTDIR)$(SYSCONFDIR)/weft packaging/weft.toml
	install -d $(DESTDIR)$(UNITDIR)
	for unit in weftd weft-central; do \
		sed 's|@SBINDIR@|$(SBINDIR)|' packaging/$$unit.service >$(DESTDIR)$(UNITDIR)/$$unit.service || exit 1; \
	done
	install -D -m 644 packaging/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/weft.conf
	install -D -m 644 packaging/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/weft.conf
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/weft packaging/weft-alerts.yml packaging/weft-dashboard.json
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions
	for program in weft weftd weft-central; do $(BIN)/$$program man $(DESTDIR)$(PREFIX)/share/man || exit 1; done
	$(BIN)/weft completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/weft
	$(BIN)/weft completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_weft

# bin/weft_VERSION_ARCH.deb
deb:
	@packaging/deb

# Programs, package, bill of materials and checksums in dist/, reproducibly.
release:
	@packaging/release

# The documents as a site in dist/site.
docs:
	@scripts/docs

setup:
	@scripts/setup

demo: setup
	@go build -o .cache/bin/demo ./e2e/demo
	@.cache/bin/demo

# Three centrals and four hosts in namespaces, one declaration.
demo-central: setup
	@go build -o .cache/bin/demo-central ./e2e/democentral
	@.cache/bin/demo-central

# The tests on emulated cards need QEMU 10 and a recent kernel of backports suites.
test: setup lint unit race e2e
	@if scripts/setup nic; then $(MAKE) --no-print-directory nic; \
		else echo "SKIP e2e/nic: QEMU 10 and a recent kernel cannot be fetched"; fi

# Before a release: all of it, the slow and rare tests too, longer attacks, and each fuzz target for a
# while.
test-long:
	WEFT_LONG=1 $(MAKE) --no-print-directory test
	go test -vet=off -count=1 -v -timeout 60m -run 'TestAttacks$$' ./bench/attack -args -seconds 2
	$(MAKE) --no-print-directory fuzz FUZZTIME=10s

# What needs no run of the code; scripts/lint says what it holds.
lint:
	@scripts/lint

# Known vulnerabilities that the released programs can reach, by hand: the data base is on the network.
vuln:
	@scripts/vuln

# Rings, tables and headers as arm64 programs under qemu-user, by hand.
arm64:
	@scripts/setup arm64
	@scripts/arm64

# The fuzz targets run over their corpora here. The slowest packages wait for most of their time (on
# disks, time-outs and processes), so more of them run at a time than there are processors. scripts/lint
# runs the whole of go vet, and go test need not vet again.
unit:
	go test -vet=off -count=1 -p $(ABREAST) $(UNIT)

# Packages without concurrency and unsafe, where the race detector has nothing to find; internal/archtest
# holds them to it.
PLAIN := bfd cmd/manpage control/bond control/lacp control/loop \
	control/usererr internal/atomicfile internal/buildinfo internal/clock internal/comments internal/logs \
	internal/privilege internal/procstat internal/safepath internal/sbom internal/share internal/tomltext

# internal/archtest only reads the source.
race:
	CGO_ENABLED=1 go test -vet=off -race -count=1 -short -p $(ABREAST) \
		$$(go list ./... | grep -v '/e2e\|/bench/attack$$\|/internal/archtest$$' | grep -vxF $(PLAIN:%=-e weft/%))

# The attacks measure pauses, and have the machine for themselves. The other tests wait for half of their
# time, so more of them run at a time than there are processors; the largest packages come first.
e2e:
	status=0; \
	go test -vet=off -count=1 -v -timeout 25m ./bench/attack || status=1; \
	go test -vet=off -count=1 -v -timeout 25m -p 2 -parallel 3 ./e2e ./e2e/central \
		$$(go list ./e2e/... | grep -v '/e2e$$\|/e2e/central$$\|/e2e/nic$$') || status=1; \
	exit $$status

# The uplink on the igb and virtio_net drivers, in virtual machines of QEMU 10
# with a recent kernel, which are fetched first.
test-nic:
	@scripts/setup nic
	@$(MAKE) --no-print-directory nic

# make test-long also records the traces of docs/traces.
nic:
	go test -count=1 -v -timeout 20m $(if $(WEFT_LONG),,-skip '^TestTraces$$') ./e2e/nic

# type=uplink beside both kinds of uplink on the same emulated cards.
bench-nic:
	@scripts/setup nic
	go test -count=1 -v -timeout 30m -run '^$$' -bench UplinkKinds -benchtime 3x ./e2e/nic

# Every attack for a minute, a row each: see SECURITY.md. ATTACKARGS="-storm 1h" plays
# them all together, at random.
attack:
	@go run ./bench/attack $(ATTACKARGS)

bench: build
	@scripts/setup bench
	@go run ./bench/suite $(BENCHARGS)

# Two results of bench, each a file or COMMIT:FILE, row by row.
benchstat:
	@go build -o .cache/bin/page ./bench/page
	@for side in old=$(OLD) new=$(NEW); do \
		result=$${side#*=}; \
		case $$result in *:*) git show $$result;; *) cat "$$result";; esac | \
			.cache/bin/page -benchstat - >.cache/$${side%%=*}.txt || exit 1; \
	done
	@cd .cache && go tool benchstat $(BENCHSTATARGS) old.txt new.txt

# Every fuzz target of the module, FUZZTIME each.
fuzz:
	@for pkg in $(UNIT); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "== $$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

clean:
	rm -rf bin .cache/bin
