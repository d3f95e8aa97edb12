//! How the library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Its constructor is the first of all, so that nobody's has taken libc's `stdout` for good before it
    // is replaced (docs/decisions/reads.md).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
