//! Tokens.

/// Longest text of an expression, in bytes.
pub(crate) const LENGTH_MAX: usize = 100_000;

/// Why a text is no expression, and where, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) why: String,
}

impl Fault {
    pub(crate) fn new(at: usize, why: impl Into<String>) -> Self {
        Fault { at, why: why.into() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Ident(String),
    /// Magnitude; the sign is a token of its own.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Punctuation(&'static str),
    End,
}

/// Longer ones first.
const PUNCTUATION: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", ".", ",",
    "(", ")", "[", "]", "{", "}", "=",
];

/// Splits a text into tokens with their places; the last is [`Token::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, usize)>, Fault> {
    if text.len() > LENGTH_MAX {
        return Err(Fault::new(0, format!("expression has more than {LENGTH_MAX} bytes")));
    }
    let mut lexer = Lexer { text, at: 0 };
    let mut found = Vec::new();
    loop {
        lexer.skip_space();
        let start = lexer.at;
        let token = lexer.token()?;
        let end = token == Token::End;
        found.push((token, start));
        if end {
            return Ok(found);
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes);
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.skip(c.len_utf8());
        Some(c)
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
            self.skip(rest.len().saturating_sub(trimmed.len()));
            if !trimmed.starts_with("//") {
                return;
            }
            self.skip(trimmed.find('\n').unwrap_or(trimmed.len()));
        }
    }

    fn token(&mut self) -> Result<Token, Fault> {
        let Some(c) = self.peek() else { return Ok(Token::End) };
        if let Some((prefix, raw, bytes)) = self.string_prefix() {
            self.skip(prefix);
            return self.string(raw, bytes);
        }
        if c.is_ascii_alphabetic() || c == '_' {
            let rest = self.rest();
            let end =
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.skip(end);
            return Ok(Token::Ident(rest.get(..end).unwrap_or_default().to_owned()));
        }
        let after = self.rest().chars().nth(1);
        if c.is_ascii_digit() || (c == '.' && after.is_some_and(|c| c.is_ascii_digit())) {
            return self.number();
        }
        let found = PUNCTUATION.into_iter().find(|mark| self.rest().starts_with(mark));
        let mark = found.ok_or_else(|| {
            Fault::new(self.at, format!("Syntax error: token recognition error at: '{c}'"))
        })?;
        self.skip(mark.len());
        Ok(Token::Punctuation(mark))
    }

    /// Length of the prefix of a string, whether it is raw, and whether it is bytes.
    fn string_prefix(&self) -> Option<(usize, bool, bool)> {
        let mut start = self.rest().chars().take(3);
        let mut prefix = String::new();
        loop {
            match start.next()? {
                '\'' | '"' => break,
                c => prefix.push(c.to_ascii_lowercase()),
            }
        }
        match prefix.as_str() {
            "" => Some((0, false, false)),
            "r" => Some((1, true, false)),
            "b" => Some((1, false, true)),
            "br" | "rb" => Some((2, true, true)),
            _ => None,
        }
    }

    fn number(&mut self) -> Result<Token, Fault> {
        let start = self.at;
        let rest = self.rest();
        let fault = |text: &str| {
            Fault::new(start, format!("Syntax error: invalid number literal '{text}'"))
        };
        if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            let digits = hex.get(..end).unwrap_or_default();
            let number = u64::from_str_radix(digits, 16).map_err(|_| fault(digits))?;
            self.skip(end.saturating_add(2));
            return Ok(self.unsigned(number));
        }
        let bytes = rest.as_bytes();
        let digits =
            |from: usize| bytes.iter().skip(from).take_while(|b| b.is_ascii_digit()).count();
        let mut end = digits(0);
        let mut double = false;
        let after = end.saturating_add(1);
        if bytes.get(end) == Some(&b'.') && digits(after) > 0 {
            double = true;
            end = after.saturating_add(digits(after));
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let mut exponent = end.saturating_add(1);
            if matches!(bytes.get(exponent), Some(b'+' | b'-')) {
                exponent = exponent.saturating_add(1);
            }
            if digits(exponent) > 0 {
                double = true;
                end = exponent.saturating_add(digits(exponent));
            }
        }
        let text = rest.get(..end).unwrap_or_default();
        self.skip(end);
        if double {
            return text.parse().map(Token::Double).map_err(|_| fault(text));
        }
        let number = text.parse().map_err(|_| fault(text))?;
        Ok(self.unsigned(number))
    }

    fn unsigned(&mut self, number: u64) -> Token {
        if self.rest().starts_with(['u', 'U']) {
            self.skip(1);
            return Token::Uint(number);
        }
        Token::Int(number)
    }

    fn string(&mut self, raw: bool, bytes: bool) -> Result<Token, Fault> {
        let start = self.at;
        let unterminated = || Fault::new(start, "Syntax error: unterminated string literal");
        let quote = self.next().ok_or_else(unterminated)?;
        let triple: String = [quote, quote].iter().collect();
        let long = self.rest().starts_with(&triple);
        let end = if long {
            self.skip(2);
            format!("{triple}{quote}")
        } else {
            quote.to_string()
        };
        let mut out: Vec<u8> = Vec::new();
        loop {
            if self.rest().starts_with(&end) {
                self.skip(end.len());
                break;
            }
            let c = self.next().ok_or_else(unterminated)?;
            match c {
                '\n' | '\r' if !long => return Err(unterminated()),
                '\\' if !raw => self.escape(bytes, &mut out)?,
                c => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        if bytes {
            return Ok(Token::Bytes(out));
        }
        String::from_utf8(out)
            .map(Token::Text)
            .map_err(|_| Fault::new(start, "Syntax error: string literal is not UTF-8"))
    }

    fn escape(&mut self, bytes: bool, out: &mut Vec<u8>) -> Result<(), Fault> {
        let at = self.at;
        let wrong = || Fault::new(at, "Syntax error: invalid escape sequence");
        let c = self.next().ok_or_else(wrong)?;
        let plain = match c {
            'a' => Some(0x07),
            'b' => Some(0x08),
            'f' => Some(0x0c),
            'n' => Some(b'\n'),
            'r' => Some(b'\r'),
            't' => Some(b'\t'),
            'v' => Some(0x0b),
            '\\' | '\'' | '"' | '`' | '?' => u8::try_from(c).ok(),
            _ => None,
        };
        if let Some(byte) = plain {
            out.push(byte);
            return Ok(());
        }
        let (length, radix) = match c {
            'x' | 'X' => (2, 16),
            'u' => (4, 16),
            'U' => (8, 16),
            '0'..='3' => {
                self.at = at;
                (3, 8)
            }
            _ => return Err(wrong()),
        };
        // Bytes have no characters.
        if bytes && radix == 16 && length > 2 {
            return Err(wrong());
        }
        let digits = self.rest().get(..length).ok_or_else(wrong)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let code = u32::from_str_radix(digits, radix).map_err(|_| wrong())?;
        self.skip(length);
        if bytes {
            out.push(u8::try_from(code).map_err(|_| wrong())?);
            return Ok(());
        }
        let c = char::from_u32(code).ok_or_else(wrong)?;
        out.extend(c.encode_utf8(&mut [0; 4]).bytes());
        Ok(())
    }
}
