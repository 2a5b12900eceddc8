//! `cp`: files and directories between this machine and containers, as tar of the container's image.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_streams::archive::{self, PipeReader, PipeWriter};
use orchctl_streams::exec::{self, Exit, LocalStreams, Streams};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use crate::pods::{self, Chosen};
use crate::poll;

/// Pieces between the connection and the thread with the archive.
const QUEUE_LEN: usize = 16;
/// Bytes between them.
const PIPE_LEN: usize = 64 << 10;
/// Most padding that is read behind an archive.
const PADDING_LEN_MAX: u64 = 1 << 20;
/// Most that is kept of what tar says about errors.
const ERRORS_LEN_MAX: usize = 16 << 10;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// FILE, or [NAMESPACE/]POD:FILE
    #[arg(value_name = "FROM")]
    from: String,
    /// FILE, or [NAMESPACE/]POD:FILE
    #[arg(value_name = "TO")]
    to: String,
    /// The container; that of an annotation or the first if not set
    #[arg(long, short, value_name = "NAME")]
    container: Option<String>,
    /// Do not keep modes and owners in the container
    #[arg(long)]
    no_preserve: bool,
}

/// One of the two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Here(PathBuf),
    There { namespace: Option<String>, pod: String, path: String },
}

fn read_end(text: &str) -> Result<End, CommandError> {
    let is_path = |text: &str| text.starts_with('/') || text.starts_with('.');
    let Some((place, path)) = text.split_once(':').filter(|_| !is_path(text)) else {
        return Ok(End::Here(PathBuf::from(text)));
    };
    let (namespace, pod) = match place.split_once('/') {
        Some((namespace, pod)) => (Some(namespace.to_owned()), pod),
        None => (None, place),
    };
    let named = !pod.is_empty() && !pod.contains('/') && namespace.as_deref() != Some("");
    if !named || path.is_empty() {
        return Err(CommandError::with_text(format!("{text:?} is not [NAMESPACE/]POD:FILE")));
    }
    Ok(End::There { namespace, pod: pod.to_owned(), path: path.to_owned() })
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or written, or the container has no tar.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match (read_end(&args.from)?, read_end(&args.to)?) {
        (End::Here(from), End::There { namespace, pod, path }) => {
            let there = find(session, namespace, &pod, &args, output).await?;
            upload(session, &there, &args, from, &path, output).await
        }
        (End::There { namespace, pod, path }, End::Here(to)) => {
            let there = find(session, namespace, &pod, &args, output).await?;
            download(session, &there, &path, to, output).await
        }
        (End::Here(_), End::Here(_)) => Err(CommandError::with_text(
            "one of src or dest must be a remote file specification: POD:PATH or NAMESPACE/POD:PATH",
        )),
        _ => Err(CommandError::with_text("one of src or dest must be a local file specification")),
    }
}

/// A container.
struct There {
    chosen: Chosen,
    container: String,
}

async fn find(
    session: &Session,
    namespace: Option<String>,
    pod: &str,
    args: &Args,
    output: &mut Output,
) -> Result<There, CommandError> {
    let chosen = match namespace {
        None => pods::choose(session, pod, poll::limit("", "1s")?).await?,
        Some(namespace) => {
            let resource = session.discovery().await?.served_kind("v1", "Pod")?.clone();
            let place = crate::requests::Place {
                resource,
                namespace: Some(namespace),
                name: pod.to_owned(),
            };
            let object = crate::requests::get(session, &place).await?;
            Chosen { place, pod: object, service: None }
        }
    };
    let names = session.names().await?;
    let container = pods::container(names, &chosen.pod, args.container.as_deref(), |note| {
        // A closed terminal changes nothing.
        let _ = writeln!(output.err, "{note}");
    })?;
    Ok(There { chosen, container })
}

/// Runs a command in the container with these ends; returns what it said about errors if it failed.
async fn execute(
    session: &Session,
    there: &There,
    command: &[&str],
    stdin: Option<tokio::io::DuplexStream>,
    stdout: tokio::io::DuplexStream,
) -> Result<(), CommandError> {
    let mut query: Vec<(&str, &str)> = command.iter().map(|word| ("command", *word)).collect();
    query.extend([("container", there.container.as_str()), ("stdout", "true"), ("stderr", "true")]);
    if stdin.is_some() {
        query.push(("stdin", "true"));
    }
    let streams = Streams { stdin: stdin.is_some(), stdout: true, stderr: true, tty: false };
    let connection =
        pods::connect(session, &there.chosen.place, ("exec", &query), exec::PROTOCOL).await?;
    let (errors, mut said) = tokio::io::duplex(PIPE_LEN);
    let collect = async {
        use tokio::io::AsyncReadExt as _;
        let mut text = Vec::new();
        let mut piece = vec![0; 4096];
        while let Ok(len @ 1..) = said.read(&mut piece).await {
            let room = ERRORS_LEN_MAX.saturating_sub(text.len()).min(len);
            text.extend_from_slice(piece.get(..room).unwrap_or_default());
        }
        text
    };
    let (near, _unused) = tokio::io::duplex(1);
    let local = LocalStreams { stdin: stdin.unwrap_or(near), stdout, stderr: errors, sizes: None };
    let (ended, said) = tokio::join!(exec::run(connection, streams, local), collect);
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    match ended.map_err(|error| pods::stream_error(&error))? {
        Exit::Success => Ok(()),
        Exit::Code(code) => Err(CommandError::with_text(format!(
            "tar in the container ended with exit code {code}: {said}"
        ))),
        Exit::Failed(text) => Err(CommandError::with_text(text)),
    }
}

async fn upload(
    session: &Session,
    there: &There,
    args: &Args,
    from: PathBuf,
    path: &str,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if std::fs::metadata(&from).is_err() {
        return Err(CommandError::with_text(format!(
            "{} doesn't exist in local filesystem",
            from.display()
        )));
    }
    // Into a directory that is there, else under the name that is given.
    let (sink, _unused) = tokio::io::duplex(PIPE_LEN);
    let is_dir = execute(session, there, &["test", "-d", path], None, sink).await.is_ok();
    let own = from.canonicalize()?.file_name().map(PathBuf::from).unwrap_or_default();
    let (directory, name) = match (is_dir, split(path)) {
        (true, _) => (path.to_owned(), own),
        (false, Some((directory, name))) => (directory, PathBuf::from(name)),
        (false, None) => {
            return Err(CommandError::with_text(format!("{path} is no name of a file")));
        }
    };
    let (pieces, mut packed) = mpsc::channel(QUEUE_LEN);
    let packing = tokio::task::spawn_blocking(move || {
        let out = std::io::BufWriter::with_capacity(16 << 10, PipeWriter(pieces));
        archive::pack(&from, &name, out)
    });
    let (near, mut far) = tokio::io::duplex(PIPE_LEN);
    let sending = async move {
        while let Some(piece) = packed.recv().await {
            if far.write_all(&piece).await.is_err() {
                return; // tar has ended, and says why
            }
        }
        // Its end is that of the archive.
        let _ = far.shutdown().await;
    };
    let command: &[&str] = match args.no_preserve {
        true => &["tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-", "-C", &directory],
        false => &["tar", "-xmf", "-", "-C", &directory],
    };
    let (sink, mut ignored) = tokio::io::duplex(PIPE_LEN);
    let drain = async { tokio::io::copy(&mut ignored, &mut tokio::io::sink()).await };
    let (ended, (), _) =
        tokio::join!(execute(session, there, command, Some(near), sink), sending, drain);
    ended?;
    let skipped = packing.await.map_err(std::io::Error::other)??;
    for path in skipped {
        writeln!(
            output.err,
            "warning: skipping {}: it is neither a file, a directory nor a link",
            path.display()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Directory and name of a path in a container.
fn split(path: &str) -> Option<(String, &str)> {
    let path = path.trim_end_matches('/');
    let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
    let directory = if directory.is_empty() { "/" } else { directory };
    (!name.is_empty() && name != "..").then(|| (directory.to_owned(), name))
}

async fn download(
    session: &Session,
    there: &There,
    path: &str,
    to: PathBuf,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let name = Path::new(path).file_name().map(PathBuf::from);
    // Into a directory that is there, else under the name that is given.
    let target = match name {
        Some(name) if to.is_dir() => to.join(name),
        _ => to,
    };
    let (pieces, received) = mpsc::channel(QUEUE_LEN);
    let prefix = PathBuf::from(path);
    let place = target.clone();
    let unpacking = tokio::task::spawn_blocking(move || {
        let mut reader = PipeReader::new(received);
        let skipped = archive::unpack(&mut reader, &prefix, &place)?;
        // The padding behind the archive is read, so that tar can end; no more, and nothing behind a broken one.
        std::io::copy(&mut reader.take(PADDING_LEN_MAX), &mut std::io::sink())?;
        Ok::<_, std::io::Error>(skipped)
    });
    let (near, mut far) = tokio::io::duplex(PIPE_LEN);
    let receiving = async {
        use tokio::io::AsyncReadExt as _;
        let mut piece = vec![0; 16 << 10];
        while let Ok(len @ 1..) = far.read(&mut piece).await {
            let bytes = bytes::Bytes::copy_from_slice(piece.get(..len).unwrap_or_default());
            if pieces.send(bytes).await.is_err() {
                break;
            }
        }
        drop(pieces);
    };
    let command = ["tar", "cf", "-", path];
    let (ended, ()) = tokio::join!(execute(session, there, &command, None, near), receiving);
    let skipped = unpacking.await.map_err(std::io::Error::other)?;
    let is_cut = |error: &std::io::Error| error.kind() == std::io::ErrorKind::UnexpectedEof;
    // A connection that broke says more than the archive that it cut.
    if skipped.as_ref().err().is_none_or(is_cut) {
        ended?;
    }
    for one in skipped? {
        let name = one.name.escape_debug();
        writeln!(output.err, "warning: skipping {name}: {}", one.reason)?;
    }
    if std::fs::symlink_metadata(&target).is_err() {
        return Err(CommandError::with_text(format!("nothing was copied to {}", target.display())));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_here_or_there() {
        let here = |text: &str| End::Here(PathBuf::from(text));
        let there = |namespace: Option<&str>, pod: &str, path: &str| End::There {
            namespace: namespace.map(str::to_owned),
            pod: pod.into(),
            path: path.into(),
        };
        for (text, end) in [
            ("/tmp/a:b", here("/tmp/a:b")),
            ("./a:b", here("./a:b")),
            ("a", here("a")),
            ("p:/tmp/a", there(None, "p", "/tmp/a")),
            ("n/p:a", there(Some("n"), "p", "a")),
        ] {
            assert_eq!(read_end(text).expect("valid"), end, "{text}");
        }
        for wrong in [":a", "p:", "/:x:", "n/:a", "a/b/c:d"] {
            assert!(!matches!(read_end(wrong), Ok(End::There { .. })), "{wrong}");
        }
    }

    #[test]
    fn paths_of_containers_have_directories() {
        assert_eq!(split("/tmp/a"), Some(("/tmp".to_owned(), "a")));
        assert_eq!(split("/a/"), Some(("/".to_owned(), "a")));
        assert_eq!(split("a"), Some((".".to_owned(), "a")));
        assert_eq!(split("/"), None);
        assert_eq!(split("/a/.."), None);
    }
}
