//! The committed header is the one that the sources make, and documents every function.

use std::path::Path;

const HEADER: &str = include_str!("../include/pagekeeper.h");
const GUIDE: &str = include_str!("../../../docs/c-api.md");

fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config =
        cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let version = env!("CARGO_PKG_VERSION");
    let number = |part: &str| part.parse::<u32>().expect("a number");
    let [major, minor, patch] = [
        number(env!("CARGO_PKG_VERSION_MAJOR")),
        number(env!("CARGO_PKG_VERSION_MINOR")),
        number(env!("CARGO_PKG_VERSION_PATCH")),
    ];
    config.after_includes = Some(format!(
        "\n/** Version of this header. */\n#define PK_VERSION \"{version}\"\n\
         #define PK_VERSION_MAJOR {major}\n#define PK_VERSION_MINOR {minor}\n\
         #define PK_VERSION_PATCH {patch}"
    ));
    let mut text = Vec::new();
    let bindings = cbindgen::generate_with_config(root, config).expect("sources that can be read");
    bindings.write(&mut text);
    String::from_utf8(text).expect("text")
}

/// The functions that the header declares, with the place of each.
fn functions() -> Vec<(&'static str, usize)> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in HEADER.split_inclusive('\n') {
        if !line.starts_with([' ', '*', '/', '#'])
            && !line.starts_with("typedef")
            && let Some((before, _)) = line.split_once('(')
            && let Some(at) = before.rfind("pk_")
        {
            found.push((&before[at..], start + at));
        }
        start += line.len();
    }
    found
}

/// `PAGEKEEPER_HEADER=overwrite` makes it anew.
#[test]
fn the_header_is_that_of_the_sources() {
    let made = made();
    if std::env::var_os("PAGEKEEPER_HEADER").is_some_and(|what| what == "overwrite") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/pagekeeper.h");
        std::fs::write(path, &made).expect("the header is written");
        return;
    }
    assert!(
        made == HEADER,
        "include/pagekeeper.h is old: PAGEKEEPER_HEADER=overwrite cargo test --release -p \
         pagekeeper-capi --test header"
    );
}

/// A name of the sources' own was in everybody's way.
#[test]
fn all_names_are_marked_as_ours() {
    let names: Vec<&str> = HEADER
        .lines()
        .filter(|line| line.starts_with("typedef ") || line.starts_with("} "))
        .filter(|line| line.ends_with(';'))
        .filter_map(|line| line.trim_end_matches(';').rsplit([' ', '*']).next())
        .collect();
    assert!(names.len() >= 10, "{names:?}");
    let others: Vec<_> = names.into_iter().filter(|name| !name.starts_with("pk_")).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// The example was a parameter that there is not.
#[test]
fn policies_that_are_named_are_policies() {
    let policy = HEADER.find("const char *policy;").expect("a member");
    let words = &HEADER[HEADER[..policy].rfind("/**").expect("a comment")..policy];
    let quoted: Vec<&str> = words.split('"').skip(1).step_by(2).collect();
    assert!(quoted.len() >= 4 && quoted.iter().any(|text| text.contains(':')), "{quoted:?}");
    for text in quoted.into_iter().filter(|text| *text != ".hipec") {
        if let Err(error) = pagekeeper::library::PolicySpec::parse(text) {
            panic!("{text}: {error}");
        }
    }
}

#[test]
fn every_function_has_its_words_and_an_example() {
    let names = functions();
    assert!(names.len() >= 40, "{names:?}");
    let code: String =
        GUIDE.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    for (name, declared) in names {
        assert!(code.contains(&format!("{name}(")), "docs/c-api.md has no example of {name}");
        let before = &HEADER[..declared];
        // The comment ends right before the declaration begins.
        let comment = before.rfind("*/").expect("a comment");
        assert!(!before[comment..].contains(';'), "{name} has no comment");
        let comment = &before[before[..comment].rfind("/**").expect("a comment")..];
        assert!(comment.contains("Threads:"), "the comment of {name} does not say which threads");
    }
}
