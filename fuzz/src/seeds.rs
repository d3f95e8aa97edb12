//! Inputs to begin with: the example policies and the tests' programs in each of their forms, and
//! small traces in each format.

use crate::execution::EXAMPLES;
use pagekeeper_hipec::asm::{assemble, disassemble};
use pagekeeper_hipec::load::form_of;
use pagekeeper_hipec::source::compile;
use pagekeeper_hipec::{Form, Program, program::MAGIC};
use pagekeeper_policy::{PolicySpec, all};
use pagekeeper_trace::importers;

const FIGURE_3: &str = include_str!("../../crates/hipec/tests/source/figure3.hipec");
const FIGURE_9: &str = include_str!("../../crates/hipec/tests/source/figure9.hipec");
/// Programs with mistakes, separated by lines of `====`.
const MISTAKES: &str = include_str!("../../crates/hipec/tests/source/mistakes.txt");

/// Text in the C-like language.
pub fn sources() -> Vec<Vec<u8>> {
    let examples = EXAMPLES.iter().filter(|text| form_of(text.as_bytes()) == Form::Source);
    let texts = examples.copied().chain([FIGURE_3, FIGURE_9]).chain(MISTAKES.split("====\n"));
    let nested = ["if (a) ", "while (1) { ", "a = -", "a = (", "a[", "do ", "{ ", "! "]
        .map(|piece| format!("Event Replace() {{ {}", piece.repeat(40)));
    texts.map(str::to_owned).chain(nested).map(String::into_bytes).collect()
}

fn programs() -> Vec<Program> {
    let source = sources().into_iter().filter_map(|text| {
        let text = String::from_utf8(text).ok()?;
        compile(&text).ok().map(|compiled| compiled.program)
    });
    let lines = EXAMPLES.iter().filter_map(|text| assemble(text).ok().map(|it| it.program));
    source.chain(lines).collect()
}

/// Text, command by command.
pub fn texts() -> Vec<Vec<u8>> {
    programs().iter().map(|program| disassemble(program).into_bytes()).collect()
}

/// Binary forms.
pub fn binaries() -> Vec<Vec<u8>> {
    let encoded = programs().into_iter().filter_map(|program| program.encode().ok());
    encoded.chain([MAGIC.to_be_bytes().to_vec()]).collect()
}

/// Each example unchanged, and bytes without an order that make programs, with events.
pub fn executions() -> Vec<Vec<u8>> {
    let examples = (0..EXAMPLES.len()).map(|number| {
        let mut bytes = vec![number as u8, 0, 3 + number as u8 % 8];
        bytes.extend(disorder(number as u64, 400));
        bytes
    });
    let drawn = (0..24).map(|seed| {
        let mut bytes = disorder(100 + seed, 900);
        // Past the examples.
        bytes[0] = EXAMPLES.len() as u8;
        bytes
    });
    examples.chain(drawn).collect()
}

/// Two bytes of choices, and a small file in each format.
pub fn traces() -> Vec<Vec<u8>> {
    let page_cache = "\
# tracer: nop\n\
 cat-101 [000] ..... 12.5: mm_filemap_add_to_page_cache: dev 254:0 ino 1f pfn=0x1 ofs=4096 order=0\n\
 cat-101 [001] ..... 12.6: mm_filemap_delete_from_page_cache: dev 254:0 ino 1f pfn=0x1 ofs=4096\n";
    let mut oracle_general = Vec::new();
    for (time_s, object, bytes, next) in [(7_u32, 42_u64, 512_u32, 3_i64), (8, 42, 9000, -1)] {
        oracle_general.extend(time_s.to_le_bytes());
        oracle_general.extend(object.to_le_bytes());
        oracle_general.extend(bytes.to_le_bytes());
        oracle_general.extend(next.to_le_bytes());
    }
    let texts: &[&[u8]] = &[
        b"1\n2\n3\n2\n1\n",
        b"1 r\n2 w\n\n# a comment\n3\n",
        b"*\n1\n2\n*\n3\n",
        b"time,object,size,next\n1,2,3,4\n2,\"5\",6,-1\n",
        b"segment,page,write\n0,1,0\n0,2,1\n",
        b"0 64 0 0\n64 8 0 1\n",
        b"128166372003061629,hm,1,Read,383496192,32768,113736\n128166372016382155,hm,1,Write,1,1,1\n",
        b"I  04015e40,3\n S 1ffefff,8\n L 04222caf,8\n M 1ffe,4\n",
        b"0x7f001000 r\n0x7f002000 w\n",
        b"4f1 r\n4f2 w\n",
        page_cache.as_bytes(),
        &oracle_general,
    ];
    let formats = importers().len() as u8;
    let each = texts.iter().flat_map(|text| (0..=formats).map(move |format| (format, *text)));
    let imported = each.map(|(format, text)| [&[format, 0], text].concat());
    // Blocks of our own format: kind, records, length, content.
    let own = (0..16).map(|seed| {
        let mut bytes = vec![formats + 1, if seed % 4 == 0 { 0x80 } else { 0 }];
        bytes.extend([2, 1 + seed as u8 % 4, 40]);
        bytes.extend(disorder(seed, 44).into_iter().map(|byte| byte % 12));
        bytes
    });
    imported.chain(own).collect()
}

/// Every policy, by itself and with each parameter at its default.
pub fn policy_specs() -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    for info in all() {
        texts.push(PolicySpec::of(info).to_string());
        let given: Vec<String> = info
            .parameters
            .iter()
            .map(|parameter| format!("{}={}", parameter.key, parameter.default))
            .collect();
        texts.push(format!("{}:{}", info.name, given.join(",")));
    }
    texts.into_iter().map(String::into_bytes).collect()
}

/// Bytes without an order, always the same (splitmix64).
fn disorder(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some((bits ^ bits >> 31) as u8)
    };
    std::iter::from_fn(next).take(len).collect()
}
