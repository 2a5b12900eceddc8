//! Prints logs: one after the other, or all at once while they grow.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use orchctl_client::{CommandError, LineReader, Output, Session};
use proto_api::{duration, uri};
use proto_client::request;
use tokio::sync::mpsc;

use super::source::Source;
use super::{Args, PartFlags};

/// Lines of several logs that wait to be printed.
const QUEUE_LEN: usize = 64;
/// Lines of each log when pods are selected by labels.
const TAIL_OF_SELECTED: i64 = 10;

/// Prints the logs.
pub(super) async fn print(
    session: &Session,
    args: &Args,
    sources: Vec<Source>,
    output: &mut Output,
) -> Result<(), CommandError> {
    if !args.follow || sources.len() < 2 {
        for source in &sources {
            let ended = print_one(session, args, source, output).await;
            report_end(ended, args, output)?;
        }
        return Ok(());
    }
    if sources.len() > args.max_log_requests {
        return Err(CommandError::with_text(format!(
            "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests to increase the limit",
            sources.len(),
            args.max_log_requests
        )));
    }
    let (sender, mut lines) = mpsc::channel::<Bytes>(QUEUE_LEN);
    let followed = sources.iter().map(|source| follow(session, args, source, sender.clone()));
    let mut followed: FuturesUnordered<_> = followed.collect();
    drop(sender);
    loop {
        tokio::select! {
            // What was read comes before the end of its log.
            biased;
            line = lines.recv() => match line {
                Some(line) => {
                    output.out.write_all(&line)?;
                    if lines.is_empty() {
                        output.out.flush()?;
                    }
                }
                None => break,
            },
            Some(ended) = followed.next() => report_end(ended, args, output)?,
        }
    }
    while let Some(ended) = followed.next().await {
        report_end(ended, args, output)?;
    }
    Ok(())
}

/// With --ignore-errors the other logs go on.
fn report_end(
    ended: Result<(), CommandError>,
    args: &Args,
    output: &mut Output,
) -> Result<(), CommandError> {
    match ended {
        Err(error) if args.ignore_errors && !error.is_broken_pipe() => {
            Ok(writeln!(output.out, "{error}")?)
        }
        ended => ended,
    }
}

async fn print_one(
    session: &Session,
    args: &Args,
    source: &Source,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut lines = open(session, args, source).await?;
    if args.prefix {
        while let Some(line) = lines.next_line().await? {
            output.out.write_all(&prefixed(source, &line))?;
            if args.follow {
                output.out.flush()?;
            }
        }
        return Ok(());
    }
    while let Some(part) = lines.part().await? {
        output.out.write_all(&part)?;
        if args.follow {
            output.out.flush()?;
        }
    }
    Ok(())
}

async fn follow(
    session: &Session,
    args: &Args,
    source: &Source,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), CommandError> {
    let mut lines = open(session, args, source).await?;
    while let Some(line) = lines.next_line().await? {
        let line = if args.prefix {
            prefixed(source, &line)
        } else {
            let mut line = line.to_vec();
            line.push(b'\n');
            Bytes::from(line)
        };
        if sender.send(line).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn prefixed(source: &Source, line: &[u8]) -> Bytes {
    let mut whole = format!("[pod/{}/{}] ", source.pod, source.container).into_bytes();
    whole.extend_from_slice(line);
    whole.push(b'\n');
    Bytes::from(whole)
}

async fn open(session: &Session, args: &Args, source: &Source) -> Result<LineReader, CommandError> {
    let path = source.pods.item(&source.pod, Some("log"));
    let query = query(&source.container, &args.part, args.follow, args.selector.is_some())?;
    let response = session.open(request::get(format!("{path}?{query}"))).await?;
    Ok(LineReader::new(response).failing_after(session.timeout()?))
}

fn query(
    container: &str,
    part: &PartFlags,
    follow: bool,
    selected: bool,
) -> Result<String, CommandError> {
    let mut pairs = vec![("container", container.to_owned())];
    for (name, set) in [
        ("follow", follow),
        ("previous", part.previous),
        ("timestamps", part.timestamps),
        ("insecureSkipTLSVerifyBackend", part.insecure_skip_tls_verify_backend),
    ] {
        if set {
            pairs.push((name, "true".to_owned()));
        }
    }
    let tail = part.tail.or(selected.then_some(TAIL_OF_SELECTED));
    match tail {
        Some(lines) if lines < -1 => {
            return Err(CommandError::with_text("--tail must be greater than or equal to -1"));
        }
        Some(lines) if lines >= 0 => pairs.push(("tailLines", lines.to_string())),
        _ => {}
    }
    if let Some(since) = &part.since {
        let since = duration::parse(since)
            .map_err(|error| CommandError::with_text(format!("--since: {error}")))?;
        if !since.is_zero() {
            pairs.push(("sinceSeconds", since.as_secs().max(1).to_string()));
        }
    }
    if let Some(since) = &part.since_time {
        pairs.push(("sinceTime", since.clone()));
    }
    if let Some(bytes) = part.limit_bytes {
        pairs.push(("limitBytes", bytes.to_string()));
    }
    let pairs =
        pairs.iter().map(|(name, value)| format!("{name}={}", uri::encode(value, uri::COMPONENT)));
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_query() {
        let part = PartFlags {
            previous: true,
            tail: Some(3),
            since: Some("2m".into()),
            ..PartFlags::default()
        };
        assert_eq!(
            query("a b", &part, true, false).expect("valid"),
            "container=a%20b&follow=true&previous=true&tailLines=3&sinceSeconds=120"
        );
        let none = PartFlags::default();
        assert_eq!(query("c", &none, false, true).expect("valid"), "container=c&tailLines=10");
        let all = PartFlags { tail: Some(-1), ..PartFlags::default() };
        assert_eq!(query("c", &all, false, true).expect("valid"), "container=c");
        assert!(query("c", &PartFlags { tail: Some(-2), ..none }, false, false).is_err());
    }
}
