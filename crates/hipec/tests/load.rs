//! Programs in each form, and where their mistakes are said to be.
use pagekeeper_hipec::asm::disassemble;
use pagekeeper_hipec::{Form, load};

const SOURCE: &str = "Queue order;
Event PageFault() {
    EnQueue(FaultedPage, order, TAIL);
}
Event Replace() {
    return DeQueue(order, HEAD);
}
";

#[test]
fn a_program_is_the_same_in_each_form() {
    let (verified, form) = load("order.hipec", SOURCE.as_bytes()).unwrap();
    assert_eq!(form, Form::Source);
    let text = format!("; a comment first\n\n{}", disassemble(verified.program()));
    let binary = verified.program().encode().unwrap();
    for (bytes, expected) in [(text.as_bytes(), Form::Assembler), (&binary, Form::Binary)] {
        let (again, form) = load("order.hipec", bytes).unwrap();
        assert_eq!(form, expected);
        assert_eq!(again, verified);
    }
}

#[test]
fn mistakes_are_told_with_file_and_line() {
    let text =
        "hipec 1\nevent Init\n Page p\nevent PageFault\n Return\nevent Replace\n\n Return p\n";
    let refused = load("a.hipec", text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "error[H030]: event Replace, word 1 (Return): `p` holds no page here, on any path
 --> a.hipec:8:2
  |
8 |  Return p
  |  ^^^^^^^^
  |
  = help: set it before, with DeQueue, FindPA or Copy"
    );
    let binary = pagekeeper_hipec::asm::assemble(text).unwrap().program.encode().unwrap();
    let refused = load("a.hipec", &binary).unwrap_err().to_string();
    assert!(refused.contains("--> a.hipec (disassembled):"), "{refused}");
    assert!(refused.contains("Return   p\n") && refused.contains("^^^^"), "{refused}");
    let error = load("a.hipec", b"hipec 1\nevent Init\n Pages p ; what?\n").unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("error[H003]: `Pages` is no type"), "{error}");
    assert!(error.contains("a.hipec:3:2") && error.contains("  ^^^^^^^\n"), "{error}");
    let error = load("a.hipec", &SOURCE.as_bytes()[..SOURCE.len() - 3]).unwrap_err().to_string();
    assert!(error.contains("a.hipec:6"), "{error}");
    let lost = format!("Page page;\n{SOURCE}").replace("return De", "page = De");
    let refused = load("a.hipec", lost.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("is on no queue, and would be lost"), "{refused}");
    assert!(refused.contains("a.hipec:"), "{refused}");
    let error = load("a.hipec", b"\xff\xfe").unwrap_err().to_string();
    assert_eq!(error, "a.hipec: this is neither a program nor text");
    let error = load("a.hipec", b"HiPE\0\0\0\x02").unwrap_err().to_string();
    assert_eq!(
        error,
        "a.hipec: the program is of version 2, and this reads version 1; compile it again"
    );
}
