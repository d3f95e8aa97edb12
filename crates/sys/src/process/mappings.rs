//! What processes have mapped.
#![allow(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use linux_raw_sys::general::{procmap_query, procmap_query_flags};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::{errno, has_other_threads, other_threads};
use crate::{Errno, Result};

/// A line of `/proc/PID/maps`: one mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared, not copy-on-write.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major number of the file's device.
    pub dev_major: u32,
    /// Minor number.
    pub dev_minor: u32,
    /// Inode; 0 if there is no file.
    pub inode: u64,
    /// Path or `[heap]`-like name, as the kernel prints it (newlines as `\012`, and `(deleted)`
    /// appended); empty for anonymous memory.
    pub path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// The path without what the kernel appends to that of a file which has no name any more.
    pub fn name(&self) -> &'a [u8] {
        self.path.strip_suffix(b" (deleted)").unwrap_or(self.path)
    }

    /// The access it gives, as `PROT_` bits of `mmap(2)`.
    pub fn protection(&self) -> u64 {
        let bits = [
            (self.read, libc::PROT_READ),
            (self.write, libc::PROT_WRITE),
            (self.execute, libc::PROT_EXEC),
        ];
        bits.iter().filter(|(has, _)| *has).map(|(_, bit)| *bit as u64).sum()
    }

    /// Parses a line (without its end). `None` if it is none.
    pub fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        fn field<'a>(rest: &mut &'a [u8], end: u8) -> Option<&'a [u8]> {
            let at = rest.iter().position(|b| *b == end)?;
            let (head, tail) = rest.split_at(at);
            *rest = &tail[1..];
            Some(head)
        }
        fn number(digits: &[u8], radix: u32) -> Option<u64> {
            // A sign would be accepted by the parser, and never comes from the kernel.
            let first = digits.first()?;
            if !first.is_ascii_hexdigit() {
                return None;
            }
            u64::from_str_radix(str::from_utf8(digits).ok()?, radix).ok()
        }
        let mut rest = line;
        let start = number(field(&mut rest, b'-')?, 16)?;
        let end = number(field(&mut rest, b' ')?, 16)?;
        let &[r, w, x, s] = field(&mut rest, b' ')? else { return None };
        let offset = number(field(&mut rest, b' ')?, 16)?;
        let dev_major = number(field(&mut rest, b':')?, 16)?.try_into().ok()?;
        let dev_minor = number(field(&mut rest, b' ')?, 16)?.try_into().ok()?;
        let at = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
        let (inode, path) = rest.split_at(at);
        Some(Mapping {
            start,
            end,
            read: r == b'r',
            write: w == b'w',
            execute: x == b'x',
            shared: s == b's',
            offset,
            dev_major,
            dev_minor,
            inode: number(inode, 10)?,
            path: path.trim_ascii_start(),
        })
    }
}

/// A list of a process's mappings in `/proc`.
fn open_mappings(id: u32, name: &str) -> Result<BufReader<fs::File>> {
    let open = |id: u32| -> std::io::Result<_> {
        let file = fs::File::open(format!("/proc/{id}/{name}"))?;
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let is_empty = reader.fill_buf()?.is_empty();
        Ok((reader, is_empty))
    };
    let shown = |id| open(id).ok().filter(|(_, is_empty)| !is_empty);
    let first = open(id);
    if !matches!(first, Ok((_, false)))
        && let Some((reader, _)) = other_threads(id).find_map(shown)
    {
        return Ok(reader);
    }
    first.map(|(reader, _)| reader).map_err(|e| errno(&e))
}

/// Calls `f` for every mapping of a process, in address order, until it returns `false`.
///
/// The kernel reads the list piecewise: what changes meanwhile may be seen in either state.
///
/// # Errors
/// [`Errno::NOENT`]/[`Errno::SRCH`]: no such process; [`Errno::ACCESS`]; [`Errno::PROTO`]: a line
/// that is no mapping.
pub fn for_each_mapping(id: u32, mut f: impl FnMut(Mapping<'_>) -> bool) -> Result<()> {
    let mut reader = open_mappings(id, "maps")?;
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(|e| errno(&e))? == 0 {
            return Ok(());
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if !f(Mapping::parse(text).ok_or(Errno::PROTO)?) {
            return Ok(());
        }
    }
}

const QUERY: Opcode = opcode::read_write::<procmap_query>(b'f', 17);
const _: () = assert!(size_of::<procmap_query>() == 104);

/// [`for_each_mapping`] of the shared ones that reach beyond an address, without their paths. The kernel looks them up
/// (`PROCMAP_QUERY`, Linux 6.11, `include/uapi/linux/fs.h`); an older one lists all that there are.
///
/// # Errors
/// As [`for_each_mapping`].
pub fn for_each_shared_mapping(
    id: u32,
    from: u64,
    f: impl FnMut(Mapping<'_>) -> bool,
) -> Result<()> {
    look_up(id, from..u64::MAX, true, f)
}

/// [`for_each_mapping`] of those that reach into a range, without their paths, looked up as those of
/// [`for_each_shared_mapping`] are.
///
/// # Errors
/// As [`for_each_mapping`].
pub fn for_each_mapping_in(
    id: u32,
    range: Range<u64>,
    f: impl FnMut(Mapping<'_>) -> bool,
) -> Result<()> {
    look_up(id, range, false, f)
}

fn look_up(
    id: u32,
    range: Range<u64>,
    only_shared: bool,
    mut f: impl FnMut(Mapping<'_>) -> bool,
) -> Result<()> {
    let list = fs::File::open(format!("/proc/{id}/maps")).map_err(|e| errno(&e))?;
    let mut wanted = procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
    if only_shared {
        wanted |= procmap_query_flags::PROCMAP_QUERY_VMA_SHARED as u64;
    }
    let mut at = range.start;
    while at < range.end {
        let mapping = match query(&list, at, wanted) {
            Ok(mapping) => mapping,
            Err(Errno::NOENT) => break,
            // A kernel's thread, or one that has ended.
            Err(Errno::SRCH) if !has_other_threads(id) => return Err(Errno::SRCH),
            // What is not known, or has no memory under this name.
            Err(_) if at == range.start => {
                let concerns = |mapping: &Mapping<'_>| {
                    mapping.end > range.start && (mapping.shared || !only_shared)
                };
                return for_each_mapping(id, |mapping| {
                    mapping.start < range.end
                        && (!concerns(&mapping) || f(Mapping { path: b"", ..mapping }))
                });
            }
            Err(errno) => return Err(errno),
        };
        if mapping.start >= range.end || !f(mapping) {
            break;
        }
        at = mapping.end;
    }
    Ok(())
}

/// The mapping that covers an address, without its path; none if nothing is mapped there. As
/// [`for_each_shared_mapping`], the kernel looks it up where it can: there may be thousands before it.
///
/// # Errors
/// As [`for_each_mapping`].
pub fn mapping_at(id: u32, addr: u64) -> Result<Option<Mapping<'static>>> {
    let list = fs::File::open(format!("/proc/{id}/maps")).map_err(|e| errno(&e))?;
    match query(&list, addr, 0) {
        Ok(mapping) => return Ok(Some(mapping)),
        Err(Errno::NOENT) => return Ok(None),
        Err(_) => drop(list),
    }
    let mut found = None;
    for_each_mapping(id, |mapping| {
        if (mapping.start..mapping.end).contains(&addr) {
            found = Some(Mapping { path: b"", ..mapping });
        }
        found.is_none() && mapping.start <= addr
    })?;
    Ok(found)
}

/// Has the kernel look a mapping up.
fn query(list: &fs::File, query_addr: u64, query_flags: u64) -> Result<Mapping<'static>> {
    use procmap_query_flags as flag;
    let mut query = procmap_query {
        size: size_of::<procmap_query>() as u64,
        query_flags,
        query_addr,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_size: 0,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: 0,
        build_id_size: 0,
        vma_name_addr: 0,
        build_id_addr: 0,
    };
    // SAFETY: the number and the struct belong together (its size is asserted above), and there
    // is no buffer for names; integers take any bits.
    unsafe { ioctl(list, Updater::<QUERY, _>::new(&mut query)) }?;
    let has = |flag: procmap_query_flags| query.vma_flags & flag as u64 != 0;
    Ok(Mapping {
        start: query.vma_start,
        end: query.vma_end,
        read: has(flag::PROCMAP_QUERY_VMA_READABLE),
        write: has(flag::PROCMAP_QUERY_VMA_WRITABLE),
        execute: has(flag::PROCMAP_QUERY_VMA_EXECUTABLE),
        shared: has(flag::PROCMAP_QUERY_VMA_SHARED),
        offset: query.vma_offset,
        dev_major: query.dev_major,
        dev_minor: query.dev_minor,
        inode: query.inode,
        path: b"",
    })
}

/// What `/proc/PID/smaps` says of a mapping beside its line in `maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail<'a> {
    /// Memory in it that is no file's, such as private copies of a file's pages, swapped out or not.
    pub anonymous_bytes: u64,
    /// `VmFlags`: words of two letters, see proc_pid_smaps(5).
    pub flags: &'a str,
}

impl Detail<'_> {
    /// Whether it has a flag, such as `mw` (may be made writable) or `lo` (locked).
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|word| word == flag)
    }
}

/// [`for_each_mapping`] with details, which make the kernel walk all of the process's page tables.
///
/// # Errors
/// As [`for_each_mapping`].
pub fn for_each_detailed_mapping(
    id: u32,
    f: impl FnMut(Mapping<'_>, Detail<'_>) -> bool,
) -> Result<()> {
    let mut text = Vec::new();
    open_mappings(id, "smaps")?.read_to_end(&mut text).map_err(|e| errno(&e))?;
    parse_details(&text, f)
}

fn parse_details(text: &[u8], mut f: impl FnMut(Mapping<'_>, Detail<'_>) -> bool) -> Result<()> {
    let mut head: &[u8] = &[];
    let mut anonymous_bytes = 0;
    for line in text.split(|byte| *byte == b'\n') {
        // Fields begin with a capital letter, mappings with a digit of an address.
        if !line.first().is_some_and(u8::is_ascii_uppercase) {
            (head, anonymous_bytes) = (line, 0);
            continue;
        }
        let field = String::from_utf8_lossy(line);
        let anonymous = field.strip_prefix("Anonymous:").or_else(|| field.strip_prefix("Swap:"));
        if let Some(kib) = anonymous.and_then(|field| field.strip_suffix("kB")) {
            anonymous_bytes += kib.trim().parse::<u64>().map_err(|_| Errno::PROTO)? << 10;
        } else if let Some(flags) = field.strip_prefix("VmFlags:") {
            let mapping = Mapping::parse(head).ok_or(Errno::PROTO)?;
            if !f(mapping, Detail { anonymous_bytes, flags }) {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn maps_lines_parse() {
        let line = b"7f0a-7f0b rw-s 00002000 fd:1f 4711                /tmp/a b (deleted)";
        let m = Mapping::parse(line).unwrap();
        assert_eq!((m.start, m.end, m.offset), (0x7f0a, 0x7f0b, 0x2000));
        assert_eq!((m.dev_major, m.dev_minor, m.inode), (0xfd, 0x1f, 4711));
        assert!(m.read && m.write && !m.execute && m.shared);
        assert_eq!(m.path, b"/tmp/a b (deleted)");
        assert_eq!(m.name(), b"/tmp/a b");
        let anonymous = Mapping::parse(b"1-2 ---p 0 00:00 0 ").unwrap();
        assert_eq!((anonymous.path, anonymous.shared), (&b""[..], false));
        for bad in [&b""[..], b"1-2", b"1-2 rw-p 0 0:0 ", b"x-2 rw-p 0 0:0 1", b"1-2 rwp 0 0:0 1"] {
            assert_eq!(Mapping::parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn details_belong_to_the_mapping_above_them() {
        let text = b"1000-3000 r--p 00002000 fd:1f 4711  /tmp/a\n\
                     Size:                  8 kB\nAnonymous:             4 kB\n\
                     Swap:                  8 kB\nSwapPss:               8 kB\n\
                     VmFlags: rd mr mw me nr sd \n\
                     3000-4000 rw-p 00000000 00:00 0 \nAnonymous:             0 kB\n\
                     VmFlags: rd wr mr mw me ac sd \n";
        let mut seen = Vec::new();
        let all = parse_details(text, |m, d| {
            seen.push((m.start, m.inode, d.anonymous_bytes, d.has("nr"), d.has("n")));
            true
        });
        assert_eq!(all, Ok(()));
        assert_eq!(seen, [(0x1000, 4711, 12288, true, false), (0x3000, 0, 0, false, false)]);
        for bad in [&b"Anonymous: x kB"[..], b"VmFlags: rd", b"1-2 oops\nVmFlags: rd"] {
            assert_eq!(parse_details(bad, |_, _| true), Err(Errno::PROTO));
        }
        assert_eq!(parse_details(b"", |_, _| true), Ok(()));
        let mut flags = None;
        let here = details_belong_to_the_mapping_above_them as fn() as usize as u64;
        for_each_detailed_mapping(std::process::id(), |m, d| {
            if (m.start..m.end).contains(&here) {
                flags = Some((d.has("ex"), d.has("wr")));
            }
            true
        })
        .unwrap();
        assert_eq!(flags, Some((true, false)));
    }

    #[test]
    fn own_mappings_hold_this_function() {
        let here = maps_lines_parse as fn() as usize as u64;
        let mut found = false;
        for_each_mapping(std::process::id(), |m| {
            assert!(m.start < m.end);
            found |= m.execute && (m.start..m.end).contains(&here);
            !found
        })
        .unwrap();
        assert!(found);
        assert_eq!(for_each_mapping(u32::MAX, |_| true), Err(Errno::NOENT));
    }

    #[test]
    fn the_mapping_at_an_address_is_that_of_the_list() {
        let me = std::process::id();
        let here = maps_lines_parse as fn() as usize as u64;
        let mut listed = None;
        for_each_mapping(me, |m| {
            if (m.start..m.end).contains(&here) {
                listed = Some(Mapping { path: b"", ..m });
            }
            true
        })
        .unwrap();
        assert!(listed.is_some());
        assert_eq!(mapping_at(me, here), Ok(listed));
        assert_eq!(mapping_at(me, 0), Ok(None), "nothing is there");
        assert_eq!(mapping_at(u32::MAX, here), Err(Errno::NOENT));
    }

    #[test]
    fn shared_mappings_are_those_of_the_list() {
        let memfd = crate::memfd::Memfd::create("shared", 1 << 16, false).unwrap();
        let inode = crate::file::stat(&memfd).unwrap().id.ino;
        // SAFETY: new mappings of this test's own; nobody touches them.
        let map = |offset, protection| unsafe {
            let (at, flags) = (std::ptr::null_mut(), libc::MAP_SHARED);
            libc::mmap(at, 8192, protection, flags, memfd.as_fd().as_raw_fd(), offset)
        };
        map(4096, libc::PROT_READ);
        map(16384, libc::PROT_NONE);
        let [mut listed, mut found] = [const { Vec::new() }; 2];
        let own = |m: &Mapping<'_>| (m.start, m.end, m.offset, m.protection(), m.dev_minor);
        let me = std::process::id();
        let mut list = |m: Mapping<'_>| {
            listed.extend((m.inode == inode && m.shared).then(|| own(&m)));
            true
        };
        for_each_mapping(me, &mut list).unwrap();
        for_each_shared_mapping(me, 0, |m| {
            found.extend((m.inode == inode).then(|| own(&m)));
            true
        })
        .unwrap();
        assert_eq!((listed.len(), &found), (2, &listed));
        assert_eq!(for_each_shared_mapping(u32::MAX, 0, |_| true), Err(Errno::NOENT));
    }

    #[test]
    fn mappings_in_a_range_are_those_of_the_list() {
        let memfd = crate::memfd::Memfd::create("range", 1 << 16, false).unwrap();
        // SAFETY: new mappings of this test's own, the second in the place of a part of the first; nobody
        // touches them.
        let map = |at: usize, bytes, flags| unsafe {
            let (at, fd) = (at as *mut libc::c_void, memfd.as_fd().as_raw_fd());
            libc::mmap(at, bytes, libc::PROT_READ, flags, fd, 0).addr()
        };
        let first = map(0, 5 * 4096, libc::MAP_SHARED);
        map(first + 2 * 4096, 4096, libc::MAP_PRIVATE | libc::MAP_FIXED);
        let page = |index: u64| first as u64 + index * 4096;
        let me = std::process::id();
        let own = |m: Mapping<'_>| (m.start, m.end, m.offset, m.shared, m.inode, m.path.is_empty());
        let ino = crate::file::stat(&memfd).unwrap().id.ino;
        let parts = [
            (page(0), page(2), 0, true, ino, true),
            (page(2), page(3), 0, false, ino, true),
            (page(3), page(5), 3 * 4096, true, ino, true),
        ];
        let within = |range, most| {
            let mut found = Vec::new();
            let looked = for_each_mapping_in(me, range, |m| {
                found.push(own(m));
                found.len() < most
            });
            looked.map(|()| found)
        };
        assert_eq!(within(page(0)..page(5), usize::MAX), Ok(parts.to_vec()));
        assert_eq!(within(page(1)..page(3), usize::MAX), Ok(parts[..2].to_vec()));
        assert_eq!(within(page(2)..page(2) + 1, usize::MAX), Ok(parts[1..2].to_vec()));
        assert_eq!(within(page(0)..page(5), 1), Ok(parts[..1].to_vec()));
        assert_eq!(within(0..4096, usize::MAX), Ok(Vec::new()), "nothing is there");
        assert_eq!(within(page(1)..page(1), usize::MAX), Ok(Vec::new()), "nor in no range");
        assert_eq!(for_each_mapping_in(u32::MAX, 0..1, |_| true), Err(Errno::NOENT));
    }
}
