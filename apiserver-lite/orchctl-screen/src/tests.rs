//! Keys and news in, pictures of the screen out.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use crate::*;

const NOW: i64 = 1_000_000;

fn pods(names: &[(&str, &str)]) -> Value {
    let row = |(name, status): &(&str, &str)| {
        json!({
            "cells": [name, "1/1", status, 0, "9d"],
            "object": {"metadata": {"namespace": "web", "name": name, "creationTimestamp": "1970-01-12T13:45:40Z"}},
        })
    };
    json!({
        "kind": "Table",
        "columnDefinitions": [
            {"name": "Name", "format": "name"}, {"name": "Ready"}, {"name": "Status"}, {"name": "Restarts"}, {"name": "Age"},
        ],
        "rows": names.iter().map(row).collect::<Vec<_>>(),
    })
}

fn event(name: &str, kind: &str, at: &str, message: &str) -> Value {
    json!({
        "metadata": {"namespace": "web", "name": name}, "type": kind, "reason": "Pulled", "lastTimestamp": at, "count": 3,
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "web", "name": "a"}, "message": message,
    })
}

fn page(page: Value) -> Update {
    Update::Page { page, is_first: true, is_cut: false }
}

fn changed(kind: &str, object: Value) -> Update {
    Update::Changed(json!({"type": kind, "object": object}))
}

fn with_pods(names: &[(&str, &str)]) -> Screen {
    let mut screen = Screen::new(None);
    screen.resize(8);
    assert_eq!(screen.apply(page(pods(names))), None);
    screen
}

/// The lines of the screen, without spaces at their ends.
fn picture(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(screen, frame, NOW, true)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned()).collect()
}

fn press(screen: &mut Screen, keys: &str) -> Option<ScreenEffect> {
    let mut last = None;
    for key in KeyReader::default().read(keys.as_bytes()) {
        last = screen.press(key);
    }
    last
}

#[test]
fn pods_are_a_table_whose_ages_grow() {
    let screen = with_pods(&[("a", "Running"), ("bb", "CrashLoopBackOff")]);
    assert_eq!(
        picture(&screen, 80, 6),
        [
            " 1 nodes  2 pods  3 events  4 logs   all namespaces  2  1 failing",
            "NAMESPACE  NAME  READY  STATUS            RESTARTS  AGE",
            "web        a     1/1    Running           0         60s",
            "web        bb    1/1    CrashLoopBackOff  0         60s",
            "",
            "enter describe  w why  l log  / filter  n namespace  tab view  ? help  q quit",
        ]
    );
}

#[test]
fn news_change_rows_and_the_cursor_stays_on_its_object() {
    let mut screen = with_pods(&[("b", "Running"), ("c", "Running")]);
    press(&mut screen, "j");
    screen.apply(changed("ADDED", pods(&[("a", "Pending")])));
    let target = |screen: &mut Screen| match screen.press(KeyPress::Enter) {
        Some(ScreenEffect::Ask(Question::Describe, target)) => target.name,
        other => panic!("{other:?}"),
    };
    assert_eq!(target(&mut screen), "c");
    screen.apply(changed("DELETED", pods(&[("c", "Running")])));
    assert_eq!(target(&mut screen), "b");
    screen.apply(changed("BOOKMARK", json!({"metadata": {}})));
    screen.apply(changed("MODIFIED", pods(&[("b", "Error")])));
    assert!(picture(&screen, 80, 6)[3].contains("Error"));
    assert_eq!(screen.rows.count(), 2);
}

#[test]
fn what_is_not_well_is_counted() {
    let pods = [("a", "Running"), ("b", "Error"), ("c", "Pending"), ("d", "CrashLoopBackOff")];
    assert!(picture(&with_pods(&pods), 80, 6)[0].ends_with("  4  2 failing  1 not ready"));
    assert!(picture(&with_pods(&[("a", "Running")]), 80, 6)[0].ends_with("  1"));
}

#[test]
fn rows_are_bounded() {
    let names: Vec<String> = (0..rows::ROWS_MAX + 5).map(|at| format!("p{at}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "Running")).collect();
    let screen = with_pods(&names);
    assert_eq!(screen.rows.count(), rows::ROWS_MAX);
    assert!(picture(&screen, 80, 6)[0].ends_with("2000 of more"));

    let mut events = Rows::new(View::Events, false);
    for at in 0..rows::ROWS_MAX + 5 {
        let time = format!("1970-01-01T{:02}:{:02}:{:02}Z", at / 3600, at / 60 % 60, at % 60);
        events.change("ADDED", &event(&format!("e{at}"), "Normal", &time, ""));
    }
    let shown = events.filter_rows("");
    assert_eq!(shown.len(), rows::ROWS_MAX);
    assert_eq!((shown[0].0, shown[rows::ROWS_MAX - 1].0), ("web/e2004", "web/e5"));
}

#[test]
fn the_newest_event_comes_first_and_none_speaks_to_the_terminal() {
    let mut screen = Screen::new(Some("web".into()));
    let watch = ScreenEffect::Watch { view: View::Events, namespace: Some("web".into()) };
    assert_eq!(press(&mut screen, "3"), Some(watch));
    screen.apply(page(json!({"kind": "EventList", "items": [
        event("e1", "Normal", "1970-01-12T13:45:40Z", "older"),
        event("e2", "Warning", "1970-01-12T13:46:30Z", "\u{1b}]52;c;aGk=\u{7}\nred \u{202e}x"),
    ]})));
    let lines = picture(&screen, 90, 6);
    assert_eq!(lines[2], "10s (x3)   Warning  Pulled  Pod/a   ^[]52;c;aGk=\\u{7} red \\u{202e}x");
    assert_eq!(lines[3], "60s (x3)   Normal   Pulled  Pod/a   older");
    let about = press(&mut screen, "w");
    let target = RowTarget {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: "web".into(),
        name: "a".into(),
    };
    assert_eq!(about, Some(ScreenEffect::Ask(Question::Why, target)));
}

#[test]
fn a_filter_and_a_namespace_are_typed() {
    let mut screen = with_pods(&[("a", "Running"), ("bb", "Error"), ("bc", "Running")]);
    press(&mut screen, "/RUNx\x7f");
    let lines = picture(&screen, 80, 6);
    assert_eq!(lines[5], "/RUN");
    assert!(lines[2].contains("web        a ") && lines[3].contains("bc"), "{lines:?}");
    assert!(lines[0].ends_with("  3  1 failing  /RUN"), "{lines:?}");
    press(&mut screen, "\r");
    assert!(picture(&screen, 80, 6)[0].ends_with("/RUN"));
    assert_eq!(screen.press(KeyPress::Escape), None);
    assert_eq!(screen.rows.filter_rows(&screen.filter).len(), 3);

    assert_eq!(press(&mut screen, "nno/../de\r"), None);
    assert!(picture(&screen, 80, 6)[5].contains("is no name of a namespace"));
    let watch = ScreenEffect::Watch { view: View::Pods, namespace: Some("kube".into()) };
    assert_eq!(press(&mut screen, "nkube\r"), Some(watch));
    assert_eq!(picture(&screen, 80, 6)[1], "loading ...");
    let all = ScreenEffect::Watch { view: View::Pods, namespace: None };
    assert_eq!(press(&mut screen, "n\x7f\x7f\x7f\x7f\r"), Some(all));
}

#[test]
fn a_page_of_text_is_scrolled_and_closed() {
    let mut screen = with_pods(&[("a", "Running")]);
    let text: String = (0..20).map(|at| format!("line {at}\u{1b}[31m\n")).collect();
    screen.apply(Update::Answer { title: "pod/a".into(), text });
    press(&mut screen, "jj");
    let lines = picture(&screen, 40, 8);
    assert_eq!((lines[1].as_str(), lines[2].as_str()), ("pod/a", "line 2^[[31m"));
    press(&mut screen, "G");
    assert_eq!(picture(&screen, 40, 8)[6], "line 19^[[31m");
    screen.press(KeyPress::Right);
    assert_eq!(picture(&screen, 40, 8)[6], "[[31m");
    assert_eq!(press(&mut screen, "q"), None);
    assert!(picture(&screen, 80, 8)[1].contains("STATUS"));
    assert_eq!(press(&mut screen, "q"), Some(ScreenEffect::Quit));
}

#[test]
fn a_log_follows_its_end_until_it_is_scrolled() {
    let mut screen = with_pods(&[("a", "Running")]);
    let Some(ScreenEffect::Ask(Question::Containers, pod)) = press(&mut screen, "l") else {
        panic!("no question")
    };
    let follow = screen.apply(Update::Containers(pod.clone(), vec!["c1".into(), "c2".into()]));
    assert_eq!(follow, Some(ScreenEffect::Follow { pod: pod.clone(), container: "c1".into() }));
    for at in 0..9 {
        screen.apply(Update::Log(format!("line {at}\n").into_bytes()));
    }
    let lines = picture(&screen, 60, 8);
    assert_eq!((lines[1].as_str(), lines[6].as_str()), ("web/a c1 (1 of 2) - following", "line 8"));
    press(&mut screen, "k");
    screen.apply(Update::Log(b"line 9\nrest".to_vec()));
    screen.apply(Update::LogEnded);
    let lines = picture(&screen, 60, 8);
    assert_eq!((lines[1].as_str(), lines[6].as_str()), ("web/a c1 (1 of 2) - ended", "line 7"));
    assert_eq!(
        press(&mut screen, "c"),
        Some(ScreenEffect::Follow { pod: pod.clone(), container: "c2".into() })
    );
    assert!(matches!(press(&mut screen, "2"), Some(ScreenEffect::Watch { view: View::Pods, .. })));
    let again = ScreenEffect::Follow { pod, container: "c2".into() };
    assert_eq!(press(&mut screen, "4"), Some(again));
}

#[test]
fn the_cursor_is_always_in_sight() {
    let names: Vec<String> = (0..20).map(|at| format!("p{at:02}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "Running")).collect();
    let mut screen = with_pods(&names);
    for at in 0..20 {
        let lines = picture(&screen, 60, 8);
        assert!(lines.iter().any(|line| line.contains(&format!("p{at:02}"))), "{at}: {lines:?}");
        press(&mut screen, "j");
    }
    screen.press(KeyPress::Home);
    assert!(picture(&screen, 60, 8)[2].contains("p00"));
    screen.press(KeyPress::End);
    assert!(picture(&screen, 60, 8)[6].contains("p19"));
}

#[test]
fn every_size_can_be_drawn() {
    let mut states = vec![Screen::new(None), with_pods(&[("a", "Running"), ("b", "Error")])];
    let mut screen = with_pods(&[("a", "Running")]);
    press(&mut screen, "?");
    states.push(screen);
    let mut screen = with_pods(&[("a", "Running")]);
    screen.apply(Update::Answer { title: "t".into(), text: "x\n".repeat(50) });
    states.push(screen);
    let mut screen = with_pods(&[("e\u{301}界\u{1f469}\u{200d}\u{1f466}", "Running")]);
    press(&mut screen, "4");
    states.push(screen);
    for mut screen in states {
        for (width, height) in [(1, 1), (2, 1), (1, 2), (3, 3), (80, 24), (5, 200), (300, 3)] {
            screen.resize(height);
            screen.press(KeyPress::PageDown);
            let lines = picture(&screen, width, height);
            assert_eq!(lines.len(), usize::from(height));
            assert!(lines[0].starts_with(if width == 1 { "" } else { " 1" }), "{lines:?}");
        }
    }
}

#[test]
fn any_keys_and_news_are_survived() {
    let mut dice = 12_345_u64;
    let mut next = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((dice >> 33) % below).expect("small")
    };
    let keys = b"jkgG1234\t/n?wldq\x1b\r cab\x7f ";
    let mut screen = with_pods(&[]);
    let pod = RowTarget { kind: "Pod".into(), name: "a".into(), ..RowTarget::default() };
    for _ in 0..3000 {
        match next(8) {
            0 => drop(screen.apply(page(pods(&[("a", "Running"), ("b", "Error")])))),
            1 => drop(screen.apply(changed("DELETED", pods(&[("a", "")])))),
            2 => drop(screen.apply(Update::Log(vec![b'\n'; next(9000)]))),
            3 => drop(screen.apply(Update::Answer { title: String::new(), text: "x\n".into() })),
            4 => drop(screen.apply(Update::Containers(pod.clone(), vec!["c".into()]))),
            5 => drop(screen.apply(page(json!({"rows": 3, "items": [null, {"metadata": 1}]})))),
            _ => drop(press(&mut screen, std::str::from_utf8(&[keys[next(24)]]).expect("ASCII"))),
        }
        let height = u16::try_from(next(30) + 1).expect("small");
        screen.resize(height);
        assert_eq!(picture(&screen, 40, height).len(), usize::from(height));
    }
}
