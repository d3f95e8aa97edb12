//! The C-like language: the paper's figures, what programs become, and what is said of mistakes.
use pagekeeper_hipec::asm::{assemble, disassemble};
use pagekeeper_hipec::source::{Code, Diagnostic, check, compile};
use proptest::prelude::*;
use snapbox::assert_data_eq;

fn compiled(text: &str) -> String {
    match compile(text) {
        Ok(compiled) => {
            let assembled = disassemble(&compiled.program);
            let again = assemble(&assembled).expect("what is written can be read");
            assert_eq!(again.program, compiled.program);
            for (event, spans) in compiled.program.events.iter().zip(&compiled.command_spans) {
                assert_eq!(event.commands.len(), spans.len(), "event {}", event.name);
            }
            assembled
        }
        Err(errors) => panic!("{}", shown(&errors, text)),
    }
}

fn shown(errors: &[Diagnostic], text: &str) -> String {
    errors.iter().map(|error| error.render("policy.hipec", text) + "\n\n").collect()
}

#[test]
fn figure_3_compiles() {
    assert_data_eq!(
        compiled(include_str!("source/figure3.hipec")),
        snapbox::file!["source/figure3.asm"]
    );
}

#[test]
fn figure_9_compiles() {
    assert_data_eq!(
        compiled(include_str!("source/figure9.hipec")),
        snapbox::file!["source/figure9.asm"]
    );
}

/// Each statement and value once.
#[test]
fn every_construct_compiles() {
    assert_data_eq!(
        compiled(include_str!("source/constructs.hipec")),
        snapbox::file!["source/constructs.asm"]
    );
}

/// The examples for users, in `policies/` of the repository.
#[test]
fn the_example_policies_compile() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let assembled = compiled(&text);
        assert!(assembled.contains("event Replace"), "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 9);
}

/// Each program in the file, between lines of `====`, has one mistake or a few.
#[test]
fn mistakes_are_shown_with_line_caret_and_suggestion() {
    let all: String = include_str!("source/mistakes.txt")
        .split("====\n")
        .map(|text| match check(text) {
            Ok(_) => format!("no mistake was found in:\n{text}\n"),
            Err(errors) => shown(&errors, text) + "====\n",
        })
        .collect();
    assert_data_eq!(all, snapbox::file!["source/mistakes.out"]);
}

/// The figures as they are printed: each slip is told of, at its line.
#[test]
fn the_figures_slips_are_found() {
    let printed = include_str!("source/figure9.hipec")
        .replace("EmptyQ( IndexLevel ) )\n", "EmptyQ( IndexLevel ) );\n")
        .replace("EnQueue( page, Indicator, TAIL );", "EnQueue( Indicator, TAIL );");
    let found: Vec<(usize, Code)> = compile(&printed)
        .expect_err("both are mistakes")
        .iter()
        .map(|error| (error.line(&printed), error.code))
        .collect();
    assert_eq!(found, [(10, Code::NoEffect), (27, Code::Arguments)]);

    let printed = include_str!("source/figure3.hipec")
        .replace("active_count + inactive_count", "active_target + inactive_target");
    let found = compile(&printed).expect_err("`active_target` is not declared");
    assert_eq!((found.len(), found[0].code), (1, Code::Undeclared));
    assert_eq!(found[0].line(&printed), 23);
    assert_eq!(found[0].replacement.as_ref().expect("a suggestion").1, "inactive_target");
}

/// Once, nesting without braces, `if (…) if (…) …`, grew the parser's stack with the text.
#[test]
fn nesting_is_bounded() {
    for part in [
        "(",
        "{",
        "[",
        "!",
        "-",
        "x=",
        "a[",
        "a+",
        "a.",
        "f(",
        "f(a,",
        "if(a) ",
        "else ",
        "do ",
        "while(1) ",
        "for(;;) ",
        "a:",
        "++",
        "if(a) x; else ",
        "if(a) x; else do ",
        "if(a) if(b) x; else ",
        "if(a) {} else {",
        "do { x; } while (1); ",
        "!(",
        "-a[",
        "Event A(){",
    ] {
        for times in [10, 60, 5000] {
            let text = format!("Event PageFault() {{ {}", part.repeat(times));
            if let Err(errors) = compile(&text) {
                assert!(!shown(&errors[..1], &text).is_empty());
            }
        }
    }
}

/// Once, a loop that only a `goto` reaches lost its condition, and went on for ever.
#[test]
fn a_loop_that_is_entered_by_a_label_keeps_its_condition() {
    let text = "Int x;
        Event PageFault() { if (x > 3) goto within; return; while (x > 0) { within: x--; } }
        Event Replace() { }";
    let assembled = compiled(text);
    assert!(assembled.contains("Comp     x > _0"), "{assembled}");
}

/// Variables of two events may have one name, and names put together from two may meet.
#[test]
fn variables_of_events_do_not_meet() {
    let text = "Event PageFault() { Int c; Int b_c; c = 1; b_c = 2; a(); a_b(); }
        Event Replace() { Int c; Int b_c; c = 3; b_c = 4; }
        a() { Int b_c; b_c = 5; }
        a_b() { Int c; c = 6; }";
    compiled(text);
    let program = check(text).expect("it may run");
    let mut names: Vec<_> = program.program().operands.iter().map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!((names.len(), count), (12, 12), "{names:?}");
}

/// Pieces that make programs that are nearly right.
fn pieces() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "Event",
        "Init",
        "PageFault",
        "Replace",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ";",
        ",",
        ":",
        ".",
        "Int",
        "Page",
        "Queue",
        "*",
        "x",
        "y",
        "q",
        "page",
        "a",
        "if",
        "else",
        "while",
        "do",
        "for",
        "break",
        "continue",
        "return",
        "goto",
        "++",
        "--",
        "=",
        "+=",
        "==",
        "<",
        "&&",
        "||",
        "!",
        "+",
        "-",
        "/",
        "%",
        "1",
        "2",
        "0x1F",
        "99999999999",
        "TRUE",
        "NULL",
        "HEAD",
        "TAIL",
        "DeQueue(q, HEAD)",
        "EnQueue(page, q, TAIL);",
        "Ref(page)",
        "FindPA(FaultedAddress)",
        "Release(page);",
        "if (Ref(page)) {",
        "x = x + 1;",
        "Event PageFault() {",
        "Event Replace() {",
        "Int x; Page page; Queue q;",
        "struct Page { Int f; }",
        "page.f",
        "by",
        "/*",
        "*/",
        "//",
        "\n",
        "é",
        "\u{0}",
        "CreateQ(x);",
        "EmptyQ(x)",
        "a:",
        "goto a;",
    ]);
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.join(" "))
}

fn survives(text: &str) {
    match compile(text) {
        Ok(compiled) => {
            let again = assemble(&disassemble(&compiled.program)).expect("can be read again");
            assert_eq!(again.program, compiled.program);
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in &errors {
                assert!(error.span.start <= error.span.end && error.span.end <= text.len());
                assert!(error.render("policy.hipec", text).contains(error.code.id()));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        survives(&text);
    }

    #[test]
    fn no_program_panics(text in pieces()) {
        survives(&text);
    }

    /// Statements that are right, in any order, compile to what can be written and read.
    #[test]
    fn right_programs_compile(statements in proptest::collection::vec(
        proptest::sample::select(vec![
            "x = (x + y) * 2 / 3 - x % 7;",
            "if (x < y && !(y >= 3) || Ref(page)) { x++; } else if (EmptyQ(q)) y--; else { }",
            "while (x > 0) { x--; if (x == 5) break; if (x == 7) continue; y += 2; }",
            "do { y = y - 1; } while (y > 0 || Mod(page));",
            "for (x = 0; x < 10; x++) { y = x; }",
            "page = DeQueue(q, HEAD); if (page) EnQueue(page, level[x], TAIL);",
            "page.f = page.g + 1; page.g++;",
            "x = Ref(page); y = x == 2;",
            "{ y = -x; x = FindVA(page); }",
            "if (page == NULL) return; else { }",
            "Request(8); Prefetch(FaultedAddress + 1, 4);",
        ]),
        0..20,
    )) {
        let text = format!(
            "struct Page {{ Int f, g; }} Int x, y; Page page; Queue q; Queue level[4];\n\
             Event PageFault() {{ {} }} Event Replace() {{ }}",
            statements.join("\n"),
        );
        compiled(&text);
    }
}
