//! C++ programs.

use crate::runs::{self, Budget, LIMIT, Scratch, command, finish, has};
use std::path::Path;
use std::process::Command;

fn compile(place: &Scratch, flags: &[&str], out: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c/output.cc");
    let out = place.file(out);
    let mut compiler = Command::new("c++");
    compiler.args(["-O1", "-o"]).arg(&out).arg(source).args(flags);
    let done = compiler.output().expect("a C++ compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    out.to_str().expect("a name").to_owned()
}

/// `std::cout` uses what `stdout` was when the first library with streams of C++'s was initialised. That
/// was before the preload library put its own there: two buffers, whose content came in any order.
#[test]
fn streams_of_c_and_cplusplus_keep_their_order() {
    if !runs::ready() {
        return;
    }
    if !has("c++") {
        return runs::skip("there is no C++ compiler");
    }
    let place = Scratch::new("cplusplus");
    let library = compile(&place, &["-DLIBRARY", "-shared", "-fPIC"], "liboutput.so");
    let program = compile(&place, &[&library], "output");
    place.put("in", "abcdefghij".repeat(20));
    let run = |budget: Option<&Budget>, out: &str| {
        place.put(out, "");
        let mut shell = command(&place, budget, "sh");
        finish(&place, shell.args(["-c", &format!("{program} < in >> {out}")]), b"", LIMIT).ok();
        place.get(out)
    };
    let expected = run(None, "bare");
    assert_eq!(expected.iter().filter(|&&byte| byte == b'\n').count(), 200);
    for heap in [false, true] {
        let budget = Budget::kib(256);
        let budget = if heap { budget.heap(1 << 20) } else { budget };
        let found = run(Some(&budget), "managed");
        assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
    }
}
