//! What is known of a file.

use crate::engine::change::Change;
use crate::engine::core::presumed::Presumed;
use crate::engine::errors::WriteErrors;
use crate::engine::mappings::Mappings;
use crate::engine::open_pages::OpenPages;
use crate::engine::stats::FileCounts;
use crate::port::{PAGE_BYTES, Version};
use rangemap::RangeSet;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A range of a file that a client is changing by a system call of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fence {
    pub(crate) ticket: u64,
    pub(crate) change: Change,
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Not yet: an earlier change of some of its pages is open, or its dirty pages are being
    /// written back (and no new ones come into being).
    pub(crate) preparing: bool,
    /// How long the file may be taken for until it is over: what is longer may not be patched yet.
    pub(crate) size_bytes_max: u64,
}

/// Changes of a file by somebody outside. Clean pages may be old until they were dropped after the
/// last one was found; what is found meanwhile counts.
#[derive(Default, Debug)]
pub(crate) struct Foreign {
    /// How often one was found.
    found: u64,
    /// How many of them all clean pages were dropped after.
    dropped: u64,
}

impl Foreign {
    /// One was found.
    pub(crate) fn find(&mut self) {
        self.found += 1;
    }

    /// How many were found so far.
    pub(crate) fn found(&self) -> u64 {
        self.found
    }

    /// All clean pages were dropped after so many had been found.
    pub(crate) fn drop_old(&mut self, found: u64) {
        self.dropped = self.dropped.max(found);
    }

    /// Whether clean pages may be old.
    pub(crate) fn is_stale(&self) -> bool {
        self.dropped < self.found
    }
}

/// Writes of ours to a file, which change its times.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct OwnWrites {
    /// How many began so far.
    begun: u64,
    /// How many ended.
    ended: u64,
}

impl OwnWrites {
    pub(crate) fn begin(&mut self) {
        self.begun += 1;
    }

    pub(crate) fn end(&mut self) {
        self.ended += 1;
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.begun - self.ended
    }

    /// Whether one ended since: times that were looked up meanwhile may be older than what is known.
    pub(crate) fn has_ended_since(&self, before: OwnWrites) -> bool {
        self.ended != before.ended
    }

    /// Whether none was under way, from then on.
    pub(crate) fn was_none_since(&self, before: OwnWrites) -> bool {
        before.under_way() == 0 && *self == before
    }
}

/// A managed file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) version: Version,
    pub(crate) pages: u64,
    pub(crate) mappings: Mappings,
    pub(crate) fences: Vec<Fence>,
    /// How many were put so far.
    pub(crate) fences_put: u64,
    /// Pages that count as dirty before anybody stored to them.
    pub(crate) presumed: Presumed,
    /// The fence of an overwrite that a client began without a message.
    pub(crate) overwrite: Option<u64>,
    /// What somebody else added while one of ours was changing its last page: when that one is done, storage
    /// is asked what lies there.
    pub(crate) unread: RangeSet<u64>,
    /// What clients store to by themselves, if writes are delayed.
    pub(crate) open: Option<OpenPages>,
    /// Held by whoever looks at its length and follows it.
    pub(crate) looking: Arc<Mutex<()>>,
    /// Changes in progress that a copy from a mapping must not run beside.
    pub(crate) unsettled: u32,
    /// How many of them began so far.
    pub(crate) unsettlings: u64,
    /// The file's times change by our own doing.
    pub(crate) own_writes: OwnWrites,
    /// Held by whoever begins one, until it is known that nobody outside was there before.
    pub(crate) beginning: Arc<Mutex<()>>,
    /// What somebody outside did to it.
    pub(crate) foreign: Foreign,
    /// When it was looked at last, its time was [open](crate::port::Look::is_open).
    pub(crate) is_open: bool,
    /// Whoever writes to it by system calls is heard of.
    pub(crate) is_heard: bool,
    /// Somebody outside was heard of.
    pub(crate) is_shared: bool,
    /// When its change time was last looked at, and may have been due to somebody outside who was not
    /// heard of yet.
    pub(crate) doubted_ns: Option<u64>,
    /// Every dirty page, and perhaps some that are clean by now.
    pub(crate) dirty: BTreeSet<u64>,
    /// How often a page that was to be written back was passed over because a client changed it.
    pub(crate) passed_over: u64,
    /// Storage may lack blocks for some pages: reserve before giving write access.
    pub(crate) holes: bool,
    /// Pages that may be dirty, and that the file became longer within: storage may lack blocks for what
    /// they gained.
    pub(crate) lacks_room: BTreeSet<u64>,
    /// How often it became longer within a page: what was reserved before may not reach to the page's
    /// end.
    pub(crate) grown: u64,
    pub(crate) counts: FileCounts,
    /// What write-backs failed with.
    pub(crate) errors: WriteErrors,
    /// Dirty pages are written when somebody asks for it, and stay until then.
    pub(crate) on_request: bool,
    /// Write-backs of it that storage has not ended for so long that others do without its dirty pages.
    pub(crate) overdue: u32,
    /// It is a process's heap: what of it is in use.
    pub(crate) heap: Option<crate::engine::heap::Pages>,
    /// Nothing is left of it but mappings that show nothing: see [`Engine::retire`].
    ///
    /// [`Engine::retire`]: crate::engine::Engine::retire
    pub(crate) gone: bool,
}

impl File {
    pub(crate) fn new(name: &str, version: Version, pages: u64, holes: bool) -> File {
        File {
            name: name.to_owned(),
            version,
            pages,
            mappings: Mappings::default(),
            fences: Vec::new(),
            fences_put: 0,
            presumed: Presumed::default(),
            overwrite: None,
            unread: RangeSet::new(),
            open: None,
            looking: Arc::default(),
            unsettled: 0,
            unsettlings: 0,
            own_writes: OwnWrites::default(),
            beginning: Arc::default(),
            foreign: Foreign::default(),
            is_open: false,
            is_heard: false,
            is_shared: false,
            doubted_ns: None,
            dirty: BTreeSet::new(),
            passed_over: 0,
            holes,
            lacks_room: BTreeSet::new(),
            grown: 0,
            counts: FileCounts::default(),
            errors: WriteErrors::default(),
            on_request: false,
            overdue: 0,
            heap: None,
            gone: false,
        }
    }

    /// It was looked at. If its time was open before, somebody outside may have changed it since, whatever it
    /// shows now.
    pub(crate) fn looked(&mut self, is_open: bool) {
        if std::mem::replace(&mut self.is_open, is_open) {
            self.foreign.find();
        }
    }

    /// No time is known of which programs could rely on it that nothing changed since.
    pub(crate) fn has_no_time(&self) -> bool {
        self.is_open || self.foreign.is_stale()
    }

    /// The machine's page behind the one that the file ends in.
    pub(crate) fn machine_end(&self) -> u64 {
        self.version.size_bytes.div_ceil(PAGE_BYTES)
    }

    pub(crate) fn gone() -> File {
        File { gone: true, ..File::new("", Version::default(), 0, false) }
    }
}
