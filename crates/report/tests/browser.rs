//! A report as a browser shows it: every figure drawn, no error, nothing wider than a phone.
//!
//! Needs Chromium (`PAGEKEEPER_CHROMIUM`, or `chromium` on the path); skipped, with the reason,
//! without. `PAGEKEEPER_SCREENSHOTS=DIR` keeps pictures of the page.
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagekeeper_policy::PolicySpec;
use pagekeeper_report::{Options, Report, Trace};
use pagekeeper_sim::{Reference, References};

/// Put at the page's end: counts, for each figure, the pixels that are drawn, and says how wide the
/// page is. It must see every error, so it also stands before all other code.
const ERRORS: &str = "<script>window.seen = []; addEventListener('error', (e) => \
                      seen.push(e.message));</script>";
const PROBE: &str = r#"<script>
const wait = setInterval(() => {
  if (!document.documentElement.dataset.drawn) return;
  clearInterval(wait);
  const charts = [...document.querySelectorAll(".chart")].map((chart) => {
    const canvas = chart.querySelector("canvas");
    if (!canvas) return chart.id + "=0";
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colors = new Set();
    let inked = 0;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3] > 0) { inked++; colors.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]); }
    }
    return chart.id + "=" + (colors.size > 3 ? inked : 0);
  });
  const width = document.documentElement.scrollWidth - window.innerWidth;
  document.body.innerHTML = "<pre>PROBE " + JSON.stringify({ charts, width, seen }) + " END</pre>";
}, 50);
</script>"#;

fn chromium() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PAGEKEEPER_CHROMIUM") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|file| file.is_file())
}

/// Runs the browser on a page, in a window of this size.
fn browse(chromium: &Path, page: &Path, size: (u32, u32), more: &[OsString]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut user_data = OsString::from("--user-data-dir=");
    user_data.push(home.path());
    let mut url = OsString::from("file://");
    url.push(page);
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=20000"])
        .arg(format!("--window-size={},{}", size.0, size.1))
        .arg(user_data)
        .args(more)
        .arg(url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Two files with a sequence, a loop and hot pages; times; names that try to be code.
fn string() -> References {
    let mut builder = References::builder();
    builder.segment(1, "/data/</script><script>alert(1)</script>.db", 300);
    builder.segment(2, "/data/a long name that has no place beside a figure.idx", 100);
    for at in 0..30_000_u64 {
        let (segment, page_index) = match at / 5000 % 3 {
            0 => (1, at % 300),
            1 => (2, at % 90),
            _ => (1, (at * at + at / 7) % 41),
        };
        builder
            .push(Reference {
                segment,
                page_index,
                write: at % 5 == 0,
                by_call: false,
                time_ns: at * 1_000_000,
            })
            .unwrap();
    }
    builder.finish()
}

#[test]
fn every_figure_is_drawn_without_errors_on_a_screen_and_on_a_phone() {
    let Some(chromium) = chromium() else {
        println!("skipped: no chromium; install it, or set PAGEKEEPER_CHROMIUM to one");
        return;
    };
    let references = string();
    let named = Trace {
        name: "<img src=x onerror=alert(1)>",
        page_bytes: 4096,
        references: &references,
        memory_frames: &[100],
    };
    let plain = Trace { name: "plain", ..named };
    let names = ["lru", "arc", "dias", "mru", "opt"];
    let policies = names.map(|name| PolicySpec::parse(name).unwrap()).to_vec();
    let report = Report::make(&[named, plain], &Options::new(policies)).unwrap();
    let html = report.html().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    fs::write(&page, &html).unwrap();

    // As it is: the page's own policy forbids all code but its own, and nothing complains.
    let shots = std::env::var_os("PAGEKEEPER_SCREENSHOTS").map(PathBuf::from);
    let output = browse(&chromium, &page, (1280, 900), &["--dump-dom".into()]);
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<_> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let drawn = report.figures().filter(|figure| figure.chart.is_some()).count();
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains(&format!("data-drawn=\"{drawn}\"")), "not all {drawn} figures are drawn");

    // With a probe, which that policy would stop.
    let start = html.find("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let end = start + html[start..].find('>').unwrap() + 1;
    let probed = format!("{}{ERRORS}{}{PROBE}", &html[..start], &html[end..]);
    let probed_page = folder.path().join("probed.html");
    fs::write(&probed_page, probed).unwrap();
    // Headless windows are at least 500 pixels wide, so the phone is a frame in one.
    let phone = folder.path().join("phone.html");
    fs::write(
        &phone,
        "<body style='margin:0'><iframe src='probed.html' width=390 height=844 \
                       onload='setInterval(() => { const pre = this.contentDocument && \
                       this.contentDocument.querySelector(\"pre\"); if (pre) \
                       document.title = pre.textContent; }, 50)'></iframe>",
    )
    .unwrap();
    let same_origin = OsString::from("--allow-file-access-from-files");
    for (page, size) in [(&probed_page, (1280, 900)), (&phone, (1280, 900))] {
        let output = browse(&chromium, page, size, &["--dump-dom".into(), same_origin.clone()]);
        let dom = String::from_utf8_lossy(&output.stdout);
        let found = dom.find("PROBE ").map(|at| &dom[at + 6..]);
        let found = found.unwrap_or_else(|| panic!("the probe did not answer: {dom:.2000}"));
        let found = found.split(" END").next().unwrap().replace("&quot;", "\"");
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["seen"], serde_json::json!([]), "errors");
        assert!(found["width"].as_i64().unwrap() <= 0, "the page is wider than its window");
        let charts = found["charts"].as_array().unwrap();
        assert_eq!(charts.len(), drawn);
        for chart in charts {
            let (id, inked) = chart.as_str().unwrap().rsplit_once('=').unwrap();
            assert!(inked.parse::<u64>().unwrap() > 500, "{id} is empty");
        }
    }
    if let Some(shots) = shots {
        fs::create_dir_all(&shots).unwrap();
        let mut shot = OsString::from("--screenshot=");
        shot.push(shots.join("screen.png"));
        browse(&chromium, &page, (1280, 12_000), &[shot]);
    }
}
