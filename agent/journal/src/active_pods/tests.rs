use super::*;

/// A process that ends while it has these pods in hand; what the next one knows, by uid: ends, and whether it is quarantined.
fn end_with(path: &Path, pods: &[&str], kept: &[&str]) -> BTreeMap<String, (u32, bool)> {
    {
        let active_pods = ActivePods::open(path, LastEnd::Crashed).expect("open");
        let marks: Vec<ActivityMark> =
            ["a", "b", "c"].iter().map(|uid| active_pods.mark(uid, 7)).collect();
        for uid in kept {
            active_pods.update(uid, |record| record.is_held_back = true);
        }
        if pods.is_empty() {
            active_pods.close();
        }
        let at = |uid: &str| ["a", "b", "c"].iter().position(|known| *known == uid).expect("known");
        for uid in pods {
            // Killed: what would end the mark never runs.
            std::mem::forget(marks[at(uid)].set());
        }
    }
    let next = ActivePods::open(path, LastEnd::Crashed).expect("open again");
    let records = next.lock().records.clone();
    // That look was no process of its own.
    let text: Vec<u8> = records.values().flat_map(|(_, record)| record.write()).collect();
    std::fs::write(path, text).expect("write");
    records
        .into_iter()
        .map(|(uid, (_, record))| (uid, (record.crashes, record.is_quarantined)))
        .collect()
}

fn known(expect: &[(&str, u32, bool)]) -> BTreeMap<String, (u32, bool)> {
    expect.iter().map(|(uid, crashes, q)| ((*uid).to_owned(), (*crashes, *q))).collect()
}

#[test]
fn a_pod_active_in_two_consecutive_crashes_is_quarantined() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-mark");
    assert_eq!(end_with(&path, &["a"], &[]), known(&[("a", 1, false)]));
    // An end that it has no part in clears it.
    assert_eq!(end_with(&path, &["b"], &[]), known(&[("b", 1, false)]));
    assert_eq!(end_with(&path, &["a"], &[]), known(&[("a", 1, false)]));
    assert_eq!(end_with(&path, &["a", "b"], &[]), known(&[("a", 2, true), ("b", 1, false)]));
    // For good, whoever else is in hand.
    assert_eq!(end_with(&path, &["c"], &[]), known(&[("a", 2, true), ("c", 1, false)]));
    assert_eq!(end_with(&path, &[], &[]), known(&[("a", 2, true)]));
}

#[test]
fn of_several_suspects_none_is_quarantined_before_it_was_tried_alone() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-mark");
    end_with(&path, &["a", "b", "c"], &[]);
    let both = known(&[("a", 2, false), ("b", 2, false)]);
    assert_eq!(end_with(&path, &["a", "b"], &[]), both);
    // One is tried, and the other kept.
    assert_eq!(end_with(&path, &["b"], &["a"]), known(&[("a", 2, false), ("b", 3, true)]));
    assert_eq!(end_with(&path, &[], &[]), known(&[("b", 3, true)]));
}

#[tokio::test]
async fn a_pod_is_in_hand_while_it_is_polled_and_not_while_it_waits() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-mark");
    let active_pods = ActivePods::open(&path, LastEnd::Crashed).expect("open");
    let marks = || -> Vec<bool> {
        read(&path).expect("read").into_iter().map(|record| record.is_active).collect()
    };
    let mark = active_pods.mark("a", 1);
    let inner = mark.clone().wrap(async {
        assert_eq!(marks(), [true]);
        assert!(ActivityMark::current().file.is_some());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(marks(), [true]);
    });
    let outer = async {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        marks()
    };
    let ((), waiting) = tokio::join!(inner, outer);
    assert_eq!((waiting, marks()), (vec![false], vec![false]));
    assert!(ActivityMark::current().file.is_none());
    // A panic ends the mark as well.
    let broken = tokio::spawn(mark.wrap(async { panic!("on purpose") })).await;
    assert!(broken.is_err());
    assert_eq!(marks(), [false]);
    active_pods.forget("a");
    assert_eq!(marks(), [] as [bool; 0]);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).expect("stat"));
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_file_records_no_crashes() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-mark");
    for text in ["", "\n", "1", "111 99999999999 zz uid", "\u{ff}\u{0}", &"x".repeat(5000)] {
        std::fs::write(&path, text).expect("write");
        assert!(
            ActivePods::open(&path, LastEnd::Crashed).expect("open").lock().records.is_empty(),
            "{text:?}"
        );
    }
}

#[test]
fn a_killed_agent_records_no_crashes() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-mark");
    let left = |end: LastEnd| {
        let active_pods = ActivePods::open(&path, end).expect("open");
        // Killed: what would end the marks never runs.
        for uid in ["a", "b"] {
            let mark = active_pods.mark(uid, 7);
            std::mem::forget(mark.set());
        }
        active_pods.record("a").map_or(0, |record| record.crashes)
    };
    assert_eq!(left(LastEnd::Crashed), 0);
    assert_eq!(left(LastEnd::Killed), 0);
    assert_eq!(left(LastEnd::Killed), 0);
    assert_eq!(left(LastEnd::Crashed), 1);
    assert_eq!(left(LastEnd::Killed), 1, "what was known before stays");
}
