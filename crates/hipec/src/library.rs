//! Programs that are ready to use, and to read: `policies/*.hipec`.

/// A program's name, and its text.
pub const ALL: &[(&str, &str)] = &[
    ("fifo2", include_str!("../policies/fifo2.hipec")),
    ("lru", include_str!("../policies/lru.hipec")),
    ("mru", include_str!("../policies/mru.hipec")),
    ("clock", include_str!("../policies/clock.hipec")),
    ("lru2", include_str!("../policies/lru2.hipec")),
];
