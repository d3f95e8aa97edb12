//! Pictures without a browser: something is drawn, and drawn the same every time.
use pagekeeper_policy::PolicySpec;
use pagekeeper_report::{DrawError, Kind, Options, Report, Stills, Trace};
use pagekeeper_sim::References;

fn report(figures: Vec<Kind>) -> Report {
    let blocks = (0..6000_u64).map(|at| if at % 3 == 0 { at % 500 } else { at * at % 97 });
    let references = References::from_blocks(blocks).unwrap();
    let trace =
        Trace { name: "mixed", page_bytes: 4096, references: &references, memory_frames: &[] };
    let policies = ["lru", "mru", "opt"].map(|name| PolicySpec::parse(name).unwrap()).to_vec();
    let options = Options { figures, columns: 60, ..Options::new(policies) };
    Report::make(&[trace], &options).unwrap()
}

#[test]
fn every_chart_becomes_a_drawing_with_its_lines_and_words() {
    let report = report(Vec::new());
    let stills = Stills::new().unwrap();
    for figure in report.figures() {
        match stills.svg(figure, 900, 480) {
            Ok(svg) => {
                assert!(svg.starts_with("<svg ") && svg.contains(&figure.title), "{}", figure.id);
                let elements = svg.matches("<path").count() + svg.matches("<text").count();
                assert!(elements > 15, "{}: {elements} elements", figure.id);
            }
            Err(DrawError::Table { .. }) => assert_eq!(figure.kind, Kind::Statistics),
            Err(error) => panic!("{}: {error}", figure.id),
        }
    }
}

/// All labels of pages 16,384 to 16,443 were "16.4k".
#[test]
fn labels_of_an_axis_that_begins_far_from_zero_differ() {
    let references = References::from_blocks((0..6000).map(|at| 16384 + at % 60)).unwrap();
    let trace =
        Trace { name: "far", page_bytes: 4096, references: &references, memory_frames: &[] };
    let lru = vec![PolicySpec::parse("lru").unwrap()];
    let options = Options { figures: vec![Kind::SpaceTime], columns: 60, ..Options::new(lru) };
    let report = Report::make(&[trace], &options).unwrap();
    let svg = Stills::new().unwrap().svg(report.figures().next().unwrap(), 900, 480).unwrap();
    let texts = svg.split('>').filter_map(|part| part.split_once('<')).map(|(text, _)| text);
    let labels: Vec<&str> = texts.filter(|text| text.starts_with("16")).collect();
    let different: std::collections::HashSet<&str> = labels.iter().copied().collect();
    assert!(labels.contains(&"16.384k") && labels.len() > 5, "{labels:?}");
    assert_eq!(different.len(), labels.len(), "{labels:?}");
}

#[test]
fn a_picture_is_the_same_every_time_and_has_words_in_it() {
    let report = report(vec![Kind::MissRatio]);
    let figure = report.figures().next().unwrap();
    let stills = Stills::new().unwrap();
    let png = stills.png(figure, 600, 400).unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(png, Stills::new().unwrap().png(figure, 600, 400).unwrap());
    // Without its heading there is less of it: the font is found.
    let mut untitled = figure.clone();
    untitled.title.clear();
    assert_ne!(png, stills.png(&untitled, 600, 400).unwrap());
    assert!(matches!(
        stills.png(figure, 0, 0),
        Err(DrawError::Picture { .. } | DrawError::Script { .. })
    ));
}
