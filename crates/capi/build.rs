//! Names the shared library for the dynamic linker. Before 1.0 every minor version may break
//! programs, so it is part of the name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = |part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("by cargo");
    let soname = match version("MAJOR").as_str() {
        "0" => format!("libpagekeeper.so.0.{}", version("MINOR")),
        major => format!("libpagekeeper.so.{major}"),
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // All symbols are bound when the library is loaded: the SIGBUS handler must not find the
    // dynamic linker locked by the thread that it interrupted.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
