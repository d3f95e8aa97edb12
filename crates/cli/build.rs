//! Links the command at a fixed address. At a random one, the dynamic linker writes 35,000 addresses
//! into 116 pages before `main`: half a millisecond of each start, twice in each run, and as much
//! memory that nothing shares. Libraries, stacks, heaps and mappings are at random places as ever.
//! The unwinder is linked statically: as a library it takes 0.1 ms of each start, most of it to ask what
//! the processor is (a way out of a virtual machine).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-no-pie");
    println!("cargo:rustc-link-lib=static:-bundle,+verbatim=libgcc_eh.a");
}
