//! `orch-proxy trace` and `diff`: what happens to a connection, and whether the kernel's ruleset is as expected.

use anyhow::{Context as _, Result, bail, ensure};
use cluster::programs::programs;
use orch_tests::wait::until;
use proto_api::core::v1::Service;

use crate::context::{Context, PATIENCE};

/// Runs the proxy of the first node for a question, with the flags that it forwards with.
async fn ask(c: &Context, words: &[&str]) -> Result<String> {
    ask_with(c, words, str::to_owned).await
}

/// The same with each flag changed.
async fn ask_with(c: &Context, words: &[&str], change: fn(&str) -> String) -> Result<String> {
    let all = programs(&c.spec);
    let proxy = all.iter().find(|program| program.name == "orch-proxy-node-1");
    let argv = &proxy.context("no proxy")?.argv;
    let flags: Vec<String> = argv.iter().map(|flag| change(flag)).collect();
    let flags = flags.iter().map(String::as_str);
    c.on_node(&flags.chain(words.iter().copied()).collect::<Vec<_>>()).await
}

pub async fn the_proxy_explains_itself(c: &Context) -> Result<()> {
    let web = c.client.within::<Service>("demo").get("web").await?.spec.cluster_ip;
    let trace = ask(c, &["trace", "tcp", &web, "80", "--from", "10.244.0.250"]).await?;
    for expected in [
        "Service demo/web, port \"http\": cluster IP",
        "Ready, here",
        "endpoints: ",
        "=> to 10.244.",
    ] {
        ensure!(trace.contains(expected), "no {expected:?} in\n{trace}");
    }
    let nobody = ask(c, &["trace", "tcp", &web, "81"]).await?;
    ensure!(nobody.contains("=> rejected with a TCP reset"), "{nobody}");
    // What the kernel has follows what the API says, a moment later.
    until("no difference", PATIENCE, async || {
        ask(c, &["diff"]).await.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await?;
    // Told nothing, the program asks the one that runs.
    let all = programs(&c.spec);
    let proxy = all.iter().find(|program| program.name == "orch-proxy-node-1");
    let program = proxy.and_then(|proxy| proxy.argv.first()).context("no proxy")?;
    until("no difference without any flag", PATIENCE, async || {
        c.on_node(&[program, "diff"]).await.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await?;
    // With another block of pods the rules would be others: the comparison can fail.
    let other = |flag: &str| flag.replace("--cluster-cidr=10.244.", "--cluster-cidr=10.9.");
    match ask_with(c, &["diff"], other).await {
        Ok(text) => bail!("no difference seen: {text}"),
        Err(error) => ensure!(format!("{error:#}").contains("chain "), "{error:#}"),
    }
    Ok(())
}
