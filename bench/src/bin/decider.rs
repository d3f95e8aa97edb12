//! The other process of `pagekeeper-bench domains`: takes decisions, and is asked by messages.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    pagekeeper_bench::domains::decide(&arguments)
}
