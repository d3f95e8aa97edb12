//! Every command as its users meet it: expected output in `cmd/*.trycmd`.
//!
//! `TRYCMD=overwrite cargo test -p pagekeeper-cli --test commands` writes what comes out now.

#[test]
fn commands_say_what_they_are_expected_to() {
    trycmd::TestCases::new()
        .env("HOME", "/nonexistent")
        .env("XDG_CONFIG_HOME", "/nonexistent/config")
        .env("PAGEKEEPER_PRELOAD", "/nonexistent/libpagekeeper_preload.so")
        .case("tests/cmd/*.trycmd");
}
