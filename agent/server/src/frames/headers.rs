//! SPDY header blocks: zlib with a dictionary, one stream per connection. A block is decompressed
//! to check the number of headers and their lengths, for which the runtime allocates memory.

use flate2::{Decompress, FlushDecompress, Status};

use super::BadFrame;

/// Longest decompressed block.
const BLOCK_LEN_MAX: usize = 64 << 10;
/// Bytes decompressed at a time.
const PIECE_LEN: usize = 4 << 10;

/// The dictionary of SPDY/3 (section 2.6.10.1): words with length prefixes, then a text.
const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found\
    500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
    Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,\
    text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// Decompresses the header blocks of a connection in order.
#[derive(Debug)]
pub(super) struct Headers(Decompress);

impl Default for Headers {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Headers {
    /// Checks that the block's counts and lengths fit its size.
    pub(super) fn check(&mut self, packed: &[u8]) -> Result<(), BadFrame> {
        let block = self.unpack(packed)?;
        walk(&block).ok_or(BadFrame::Headers("counts and lengths do not match its size"))
    }

    fn unpack(&mut self, packed: &[u8]) -> Result<Vec<u8>, BadFrame> {
        let mut block = Vec::new();
        let mut rest = packed;
        loop {
            let (read, written) = (self.0.total_in(), self.0.total_out());
            let mut piece = [0; PIECE_LEN];
            let status = match self.0.decompress(rest, &mut piece, FlushDecompress::Sync) {
                Ok(status) => status,
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(&dictionary())
                        .map_err(|_| BadFrame::Headers("expected the SPDY/3 dictionary"))?;
                    Status::Ok
                }
                Err(_) => return Err(BadFrame::Headers("expected zlib data")),
            };
            let taken = usize::try_from(self.0.total_in().saturating_sub(read)).unwrap_or(0);
            let made = usize::try_from(self.0.total_out().saturating_sub(written)).unwrap_or(0);
            rest = rest.get(taken..).unwrap_or_default();
            block.extend_from_slice(piece.get(..made).unwrap_or_default());
            if block.len() > BLOCK_LEN_MAX {
                return Err(BadFrame::Headers("longer than 64 KiB decompressed"));
            }
            match status {
                Status::StreamEnd => return Err(BadFrame::Headers("the zlib stream ends early")),
                // All input is consumed.
                Status::BufError => return Ok(block),
                Status::Ok if rest.is_empty() && made < PIECE_LEN => return Ok(block),
                Status::Ok => {}
            }
        }
    }
}

/// Reads the count, and a name and a value for each header; `None` unless they fill the block
/// exactly.
fn walk(block: &[u8]) -> Option<()> {
    let mut rest = block;
    let count = number(&mut rest)?;
    // Two lengths per header: an excessive count fails before anything is allocated.
    for _ in 0..count {
        for _ in 0..2 {
            let len = usize::try_from(number(&mut rest)?).ok()?;
            rest = rest.get(len..)?;
        }
    }
    rest.is_empty().then_some(())
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let (bytes, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_be_bytes(*bytes))
}

pub(super) fn dictionary() -> Vec<u8> {
    let mut all = Vec::new();
    for word in WORDS {
        all.extend(u32::try_from(word.len()).unwrap_or_default().to_be_bytes());
        all.extend_from_slice(word.as_bytes());
    }
    all.extend_from_slice(TEXT.as_bytes());
    all
}
