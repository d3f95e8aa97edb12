//! Errors of write-backs, told once to each who asks, as the kernel tells them to each descriptor
//! (`errseq_t`).

/// What went wrong in writing a file's pages back, and how often somebody could have noticed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct WriteErrors {
    /// The latest errno.
    errno: i32,
    /// Counts errors, but for those that follow one which nobody saw.
    count: u64,
    /// Somebody saw the latest.
    seen: bool,
    /// When the latest was met, in nanoseconds of CLOCK_MONOTONIC.
    met_ns: u64,
}

impl WriteErrors {
    /// A page could not be written back, just now.
    pub(crate) fn met(&mut self, errno: i32, now_ns: u64) {
        if self.count == 0 || self.seen {
            self.count += 1;
            self.seen = false;
        }
        self.errno = errno;
        self.met_ns = now_ns;
    }

    /// Nobody is to be told of an error.
    pub(crate) fn all_seen(self) -> bool {
        self.count == 0 || self.seen
    }

    /// The latest error, if nobody saw it.
    pub(crate) fn untold(self) -> Option<i32> {
        (!self.all_seen()).then_some(self.errno)
    }

    /// From when on somebody has not heard of errors who opened the file at this time. One that
    /// nobody saw is news to whoever comes.
    pub(crate) fn sample(self, opened_ns: u64) -> u64 {
        match self.seen {
            false => 0,
            true if opened_ns <= self.met_ns => self.count - 1,
            true => self.count,
        }
    }

    /// The error that came since `heard`, which is brought up to date.
    pub(crate) fn tell(&mut self, heard: &mut u64) -> Option<i32> {
        if *heard == self.count {
            return None;
        }
        self.seen = true;
        *heard = self.count;
        Some(self.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hears_of_an_error_once() {
        let mut errors = WriteErrors::default();
        let (mut a, mut b) = (errors.sample(1), errors.sample(1));
        assert_eq!(errors.tell(&mut a), None);
        errors.met(5, 2);
        errors.met(28, 3);
        assert_eq!(errors.untold(), Some(28));
        assert_eq!(errors.tell(&mut a), Some(28), "the latest");
        assert_eq!((errors.tell(&mut a), errors.untold()), (None, None));
        // Who comes when an error was seen has missed nothing.
        let mut late = errors.sample(4);
        assert_eq!(errors.tell(&mut late), None);
        // Who opened the file before it has, although the manager hears of that only now.
        let mut lazy = errors.sample(2);
        assert_eq!(errors.tell(&mut lazy), Some(28));
        assert_eq!(errors.tell(&mut b), Some(28));
        errors.met(5, 5);
        // Nobody saw this one: whoever comes hears of it.
        let mut next = errors.sample(6);
        for heard in [&mut next, &mut late, &mut a, &mut b] {
            assert_eq!((errors.tell(heard), errors.tell(heard)), (Some(5), None));
        }
    }
}
