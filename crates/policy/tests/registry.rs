//! Names, parameters and errors of the registry.
use pagekeeper_policy::{PolicyError, PolicySpec, Value, all, find};

#[test]
fn names_and_aliases_are_lower_case_and_unique() {
    let mut seen = std::collections::HashSet::new();
    for info in all() {
        for name in std::iter::once(&info.name).chain(info.aliases) {
            assert!(seen.insert(*name), "{name} twice");
            assert_eq!(*name, name.to_lowercase());
            assert!(!name.contains([':', ',', '=', '/', ' ']), "{name} cannot be parsed");
            assert_eq!(find(name).map(|found| found.name), Some(info.name));
        }
        for text in [info.summary, info.helps, info.hurts, info.cost] {
            assert!(!text.is_empty() && !text.contains("  "), "{}: {text:?}", info.name);
        }
        for text in [info.source.title, info.source.section] {
            // A single letter is a placeholder that somebody forgot.
            let is_section = text.len() > 1 || text.parse::<u8>().is_ok();
            assert!(is_section && !text.contains("  "), "{}: {text:?}", info.name);
        }
        for parameter in info.parameters {
            assert_eq!(
                parameter.kind.parse(&parameter.default.to_string()),
                Some(parameter.default.clone()),
                "{}:{} has a default outside its range",
                info.name,
                parameter.key
            );
        }
    }
}

#[test]
fn a_spec_prints_as_text_that_parses_to_itself() {
    for (text, printed) in [
        ("lru", "lru"),
        (" LRU ", "lru"),
        ("mach", "fifo2"),
        ("fifo2:inactive=2/3", "fifo2"),
        ("fifo2: inactive = 50%", "fifo2:inactive=1/2"),
        ("mru:ahead=0.25", "mru:ahead=1/4"),
    ] {
        let spec = PolicySpec::parse(text).unwrap();
        assert_eq!(spec.to_string(), printed);
        assert_eq!(printed.parse::<PolicySpec>().unwrap(), spec);
    }
    let spec = PolicySpec::parse("fifo2:inactive=1/4").unwrap();
    assert!(matches!(spec.parameters().value("inactive"), Value::Fraction(_)));
}

#[test]
fn errors_say_what_is_possible() {
    let message = |text: &str| PolicySpec::parse(text).unwrap_err().to_string();
    let unknown = message("lrru");
    assert!(unknown.contains("no policy `lrru`") && unknown.contains("mean `lru`"), "{unknown}");
    assert!(unknown.contains("fifo2") && unknown.contains("random"), "{unknown}");
    assert!(!message("hippopotamus").contains("did you mean"));
    assert!(message("").contains("no policy ``"));
    assert_eq!(
        message("fifo2:active=1"),
        "policy `fifo2` has no parameter `active`; it takes `inactive`"
    );
    assert_eq!(message("lru:k=2"), "policy `lru` has no parameter `k`; it takes none");
    let bad = message("fifo2:inactive=2");
    assert!(bad.contains("`inactive=2` must be a share from 0 to 1"), "{bad}");
    assert!(message("fifo2:inactive").contains("`inactive` is not a parameter"));
    assert!(message("fifo2:").contains("write `fifo2` or"));
    assert!(message("fifo2:inactive=1,inactive=0").contains("given twice"));
    let opt = PolicySpec::parse("belady").unwrap();
    assert_eq!(opt.build(1, 0).err(), Some(PolicyError::SimulatorOnly { policy: "opt" }));
}
