//! Links the command at a fixed address. At a random one, the dynamic linker writes 35,000 addresses
//! into 116 pages before `main`: half a millisecond of each start, twice in each run, and as much
//! memory that nothing shares. Libraries, stacks, heaps and mappings are at random places as ever.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-no-pie");
}
