use apiserver_bootstrap::bootstrap_token::BootstrapToken;
use apiserver_bootstrap::configuration::NodeRegistration;
use apiserver_bootstrap::discovery::Source;
use apiserver_bootstrap::layout::Layout;
use proto_api::names::{Names, Profile};

use super::*;
use crate::output::{LineOutput, OutputFormat};

fn settings(layout: &Layout, node: &str) -> JoinSettings {
    JoinSettings {
        source: Source::File("/f".into()),
        tls_token: BootstrapToken::generate(),
        patience: Duration::from_secs(1),
        node: node.into(),
        runtime: "unix:///r".into(),
        authority: layout.authority(),
        registration: NodeRegistration::default(),
        bin_dir: "/b".into(),
        ignored: Vec::new(),
        skipped: Vec::new(),
        is_dry_run: false,
        control_plane: None,
    }
}

#[test]
fn a_join_is_continued_only_as_the_same() {
    let root = tempfile::tempdir().unwrap();
    let names = Names::new(Profile::Kubernetes);
    let layout = Layout::new(names, root.path());
    let output = LineOutput { format: OutputFormat::Text };
    let host = Host { names, layout: layout.clone(), record: None, output };
    let record = HostRecord::new(names, Role::Node, "n", "unix:///r");
    check_same_node(&record, "n", "unix:///r").unwrap();
    let error = check_same_node(&record, "m", "unix:///r").unwrap_err().to_string();
    assert!(error.contains("\"n\"") && error.contains("reset"), "{error}");

    let same = settings(&layout, "n");
    let found = |server: &str, authority: &str| FoundCluster {
        server: server.into(),
        authority: authority.into(),
    };
    let one = found("https://10.0.0.1:6443", "A");
    check_same_cluster(&layout, &same.authority, &one).unwrap();
    write_discovered(&host, &same, &one).unwrap();
    check_same_cluster(&layout, &same.authority, &one).unwrap();
    let refused = |other: &FoundCluster| {
        check_same_cluster(&layout, &same.authority, other).unwrap_err().to_string()
    };
    assert!(refused(&found("https://10.0.0.1:6443", "B")).contains("another cluster"));
    assert!(refused(&found("https://10.0.0.2:6443", "A")).contains("10.0.0.2"));
}
