//! ClusterRoles that are the sum of others: what they give follows their parts, and who may write them.

use anyhow::{Result, ensure};
use orch_tests::wait::until;
use proto_client::Client;
use serde_json::{Value, json};

use crate::context::{Context, PATIENCE};

const NAMESPACE: &str = "summed";
/// Labels a role as a part of the role `sum`.
const PART: &str = "part.example.com/of-sum";

struct Roles<'a> {
    context: &'a Context,
    /// Path of the group.
    group: String,
}

impl Roles<'_> {
    /// Creates or changes a ClusterRole.
    async fn write(&self, method: &str, name: &str, object: &Value) -> Result<()> {
        let path = match method {
            "POST" => format!("{}/clusterroles", self.group),
            _ => format!("{}/clusterroles/{name}", self.group),
        };
        let status = Context::status(&self.context.client, method, &path, object).await?;
        ensure!(matches!(status, 200 | 201), "{method} {path}: {status}");
        Ok(())
    }

    /// Gives a ClusterRole to a service account, within the namespace.
    async fn bind(&self, role: &str, account: &str) -> Result<()> {
        let group = self.context.names.group("rbac.authorization");
        let binding = json!({
            "metadata": {"name": format!("{role}-{account}")},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
        });
        let path = format!("{}/namespaces/{NAMESPACE}/rolebindings", self.group);
        let status = Context::status(&self.context.client, "POST", &path, &binding).await?;
        ensure!(status == 201, "POST {path}: {status}");
        Ok(())
    }

    /// Waits until the server answers the client so.
    async fn answered(&self, client: &Client, path: &str, wanted: u16) -> Result<()> {
        until(&format!("{wanted} for {path}"), PATIENCE, async || {
            match Context::status(client, "GET", path, &Value::Null).await {
                Ok(status) if status == wanted => Ok(()),
                Ok(status) => Err(status.to_string()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }
}

fn role(name: &str, labels: &Value, rules: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}, "rules": rules})
}

fn reads(resource: &str) -> Value {
    json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get", "list"]}])
}

fn within(rest: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{rest}")
}

pub async fn a_summed_role_gives_what_its_parts_give(c: &Context) -> Result<()> {
    c.namespace(NAMESPACE).await?;
    let group = format!("/apis/{}/v1", c.names.group("rbac.authorization"));
    let roles = Roles { context: c, group };
    let done = all(&roles).await;
    for name in ["sum", "part-maps", "part-secrets", "view-widgets", "writes-roles"] {
        let path = format!("{}/clusterroles/{name}", roles.group);
        Context::status(&c.client, "DELETE", &path, &Value::Null).await?;
    }
    c.discard(NAMESPACE).await?;
    done
}

async fn all(roles: &Roles<'_>) -> Result<()> {
    for name in ["reader", "viewer", "writer"] {
        let account = json!({"metadata": {"name": name}});
        let path = within("serviceaccounts");
        let status = Context::status(&roles.context.client, "POST", &path, &account).await?;
        ensure!(status == 201, "account {name}: {status}");
    }
    parts_come_and_go(roles).await?;
    a_part_of_a_role_of_every_cluster(roles).await?;
    who_may_write_them(roles).await
}

async fn parts_come_and_go(roles: &Roles<'_>) -> Result<()> {
    let part = json!({PART: "true"});
    let mut sum = role("sum", &json!({}), &json!([]));
    sum["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": part}]});
    roles.write("POST", "sum", &sum).await?;
    roles.bind("sum", "reader").await?;
    let reader = roles.context.account(NAMESPACE, "reader").await?;
    let (maps, secrets) = (within("configmaps"), within("secrets"));
    let status = Context::status(&reader, "GET", &maps, &Value::Null).await?;
    ensure!(status == 403, "an empty sum gives {status}");

    roles.write("POST", "part-maps", &role("part-maps", &part, &reads("configmaps"))).await?;
    roles.answered(&reader, &maps, 200).await?;
    let status = Context::status(&reader, "GET", &secrets, &Value::Null).await?;
    ensure!(status == 403, "a sum of less gives {status}");

    roles.write("POST", "part-secrets", &role("part-secrets", &part, &reads("secrets"))).await?;
    roles.answered(&reader, &secrets, 200).await?;
    let written = json!({"rules": reads("endpoints")});
    roles.write("PATCH", "part-secrets", &written).await?;
    roles.answered(&reader, &secrets, 403).await?;
    roles.answered(&reader, &within("endpoints"), 200).await?;

    // What is written into the sum itself does not last.
    roles.write("PATCH", "sum", &json!({"rules": reads("secrets")})).await?;
    roles.answered(&reader, &maps, 200).await?;
    roles.answered(&reader, &secrets, 403).await?;

    let unlabelled = json!({"metadata": {"labels": {PART: null}}});
    roles.write("PATCH", "part-maps", &unlabelled).await?;
    roles.answered(&reader, &maps, 403).await?;
    roles.answered(&reader, &within("endpoints"), 200).await
}

/// The role `view` gets what a package's role adds to it.
async fn a_part_of_a_role_of_every_cluster(roles: &Roles<'_>) -> Result<()> {
    roles.bind("view", "viewer").await?;
    let viewer = roles.context.account(NAMESPACE, "viewer").await?;
    roles.answered(&viewer, &within("pods"), 200).await?;
    let accounts = within("serviceaccounts/viewer/token");
    let review =
        format!("/apis/{}/v1/selfsubjectaccessreviews", roles.context.names.group("authorization"));
    let asked = json!({"spec": {"resourceAttributes": {
        "namespace": NAMESPACE, "verb": "get", "group": "example.com", "resource": "widgets",
    }}});
    ensure!(!allowed(&viewer, &review, &asked).await?, "widgets before anybody gives them");
    let group = roles.context.names.group("rbac.authorization");
    let label = format!("{group}/aggregate-to-view");
    let rules = json!([{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}]);
    let made = role("view-widgets", &json!({label: "true"}), &rules);
    roles.write("POST", "view-widgets", &made).await?;
    until("a review allows what the role gives", PATIENCE, async || {
        match allowed(&viewer, &review, &asked).await {
            Ok(true) => Ok(()),
            Ok(false) => Err("denied".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await?;
    let status = Context::status(&viewer, "POST", &accounts, &json!({})).await?;
    ensure!(status == 403, "a viewer gets tokens: {status}");
    Ok(())
}

async fn allowed(client: &Client, path: &str, review: &Value) -> Result<bool> {
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into())?;
    let answer = client.call(request).await?;
    let answer: Value = serde_json::from_slice(&answer.body)?;
    Ok(answer["status"]["allowed"] == true)
}

/// The right to write ClusterRoles is none to get more than one has, by a sum or by a label that makes a role a part of one.
async fn who_may_write_them(roles: &Roles<'_>) -> Result<()> {
    let rules = json!([
        {"apiGroups": [roles.context.names.group("rbac.authorization")], "resources": ["clusterroles"], "verbs": ["create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["configmaps", "endpoints"], "verbs": ["get", "list"]},
    ]);
    roles.write("POST", "writes-roles", &role("writes-roles", &json!({}), &rules)).await?;
    let group = roles.context.names.group("rbac.authorization");
    let binding = json!({
        "metadata": {"name": "writes-roles"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "writes-roles"},
        "subjects": [{"kind": "ServiceAccount", "name": "writer", "namespace": NAMESPACE}],
    });
    let bindings = format!("{}/clusterrolebindings", roles.group);
    let status = Context::status(&roles.context.client, "POST", &bindings, &binding).await?;
    ensure!(status == 201, "a binding: {status}");
    let done = tries(roles).await;
    let own = format!("{bindings}/writes-roles");
    Context::status(&roles.context.client, "DELETE", &own, &Value::Null).await?;
    done
}

async fn tries(roles: &Roles<'_>) -> Result<()> {
    let writer = roles.context.account(NAMESPACE, "writer").await?;
    let path = |name: &str| format!("{}/clusterroles{name}", roles.group);
    let everything = json!({"clusterRoleSelectors": [{"matchExpressions": []}]});
    let labels = json!({"metadata": {"labels": {PART: "true"}}});
    let mut sum = role("own-sum", &json!({}), &json!([]));
    sum["aggregationRule"] = everything.clone();
    let harmless = role("own", &json!({PART: "true"}), &reads("configmaps"));
    for (method, path, body, expected) in [
        ("POST", path(""), sum, 403),
        ("PATCH", path("/sum"), json!({"aggregationRule": everything}), 403),
        ("PATCH", path("/sum"), json!({"aggregationRule": null}), 403),
        ("PATCH", path("/sum"), labels.clone(), 403),
        ("PATCH", path("/part-maps"), json!({"aggregationRule": everything}), 403),
        ("PATCH", path("/part-maps"), json!({"rules": reads("secrets")}), 403),
        ("PATCH", path("/cluster-admin"), labels.clone(), 403),
        ("PATCH", path("/system:node"), labels.clone(), 403),
        // What it has itself it may give.
        ("PATCH", path("/part-maps"), labels, 200),
        ("POST", path(""), harmless, 201),
        ("DELETE", path("/own"), Value::Null, 200),
    ] {
        let status = Context::status(&writer, method, &path, &body).await?;
        ensure!(status == expected, "{method} {path} {body}: {status}, expected {expected}");
    }
    Ok(())
}
