//! `--raw` of the commands that write.

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn any_path_is_written_to_and_the_answer_is_printed() {
    let server = Server::start().await;
    let file = server.path().join("map.json").display().to_string();
    let write = |value: &str| {
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "m"}}, "data": {{"k": "{value}"}}}}"#
        );
        std::fs::write(&file, text).expect("a file");
    };
    write("one");
    let made = server.run(&["create", "--raw", MAPS, "-f", &file]).await;
    assert!(made.contains("\"kind\":\"ConfigMap\"") && made.contains("\"uid\""), "{made}");
    write("two");
    let path = format!("{MAPS}/m");
    let put = server.run(&["replace", "--raw", &path, "-f", &file]).await;
    assert!(put.contains("\"k\":\"two\""), "{put}");
    let dry = format!("{path}?dryRun=All");
    let gone = server.run(&["delete", "--raw", &dry]).await;
    assert!(gone.contains("\"status\":\"Success\""), "{gone}");
    assert_eq!(server.run(&["get", "cm", "m", "-o", "jsonpath={.data.k}"]).await, "two");
    // A body counts: the object has another UID than it asks for.
    let options =
        r#"{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}}"#;
    std::fs::write(&file, options).expect("a file");
    let refused = server.ask(&["delete", "--raw", &path, "-f", &file]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("(Conflict)"), "{}", refused.err);
    server.run(&["delete", "--raw", &path]).await;
    let missing = server.ask(&["delete", "--raw", &path]).await;
    assert!(missing.err.contains("(NotFound)"), "{}", missing.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_that_raw_does_not_go_with_are_refused() {
    let server = Server::start().await;
    for (arguments, why) in [
        (&["create", "--raw", MAPS][..], "--raw can only use a single local file or stdin"),
        (&["create", "--raw", MAPS, "-f", "a", "-f", "b"], "--raw can only use a single local"),
        (&["create", "--raw", MAPS, "-f", "http://x/y"], "--raw cannot read from a url"),
        (&["create", "--raw", "api", "-f", "/dev/null"], "--raw must be a valid URL path"),
        (&["create", "--raw", MAPS, "-f", "a", "-l", "a=b"], "--raw and --selector (-l) are"),
        (&["replace", "--raw", MAPS, "-f", "a", "-o", "json"], "--raw and --output are mutually"),
        (&["replace", "--raw", MAPS, "-R", "-f", "a"], "--raw and --recursive are mutually"),
        (&["delete", "--raw", MAPS, "cm", "m"], "cannot be used with"),
        (&["create", "--raw", MAPS, "-f", "/no/such"], "cannot read /no/such"),
    ] {
        let answer = server.ask(arguments).await;
        assert_eq!(answer.code, Some(1), "{arguments:?}");
        assert!(answer.err.contains(why), "{arguments:?}: {}", answer.err);
    }
}
