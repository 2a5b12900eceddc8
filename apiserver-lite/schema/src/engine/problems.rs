//! Unknown and duplicate fields of a document that is decoded.

use std::cell::RefCell;

use super::{DecodeError, Format, Strictness};
use crate::value::{
    Allowance, ParseError, Path, Reading, TooLarge, TreeSeed, Value, parse_json_within, read_yaml,
};

/// Unknown and duplicate fields of a document.
#[derive(Default)]
pub(super) struct Problems {
    pub(super) unknown: Vec<String>,
    pub(super) duplicates: Vec<String>,
}

impl Problems {
    /// Parses a document and notes its duplicate fields.
    pub(super) fn parse(
        &mut self,
        format: Format,
        body: &[u8],
        allowance: Allowance,
    ) -> Result<Value, DecodeError> {
        let malformed = |detail: String| DecodeError::Malformed { format, detail };
        let reading = Reading { duplicates: RefCell::default(), allowance };
        let parsed = if format == Format::Json {
            parse_json_within(body, &reading).map_err(|error| match error {
                ParseError::TooLarge(error) => error.into(),
                ParseError::Malformed(why) => malformed(why),
            })
        } else {
            let text = str::from_utf8(body).map_err(|_| malformed("not UTF-8".to_owned()))?;
            let parsed = read_yaml(text, TreeSeed { path: Path::ROOT, reading: &reading });
            parsed.map_err(|why| match reading.allowance.is_exceeded() {
                true => TooLarge::Values.into(),
                false => malformed(why.to_string()),
            })
        };
        self.duplicates = reading.duplicates.into_inner();
        parsed
    }

    /// A warning for each problem, or an error for all, as `strictness` says.
    pub(super) fn into_warnings(self, strictness: Strictness) -> Result<Vec<String>, DecodeError> {
        if strictness == Strictness::Ignore {
            return Ok(Vec::new());
        }
        let duplicates = self.duplicates.iter().map(|path| format!("duplicate field {path:?}"));
        let unknown = self.unknown.iter().map(|path| format!("unknown field {path:?}"));
        let problems: Vec<String> = duplicates.chain(unknown).collect();
        if strictness == Strictness::Strict && !problems.is_empty() {
            return Err(DecodeError::Strict(problems));
        }
        Ok(problems)
    }
}
