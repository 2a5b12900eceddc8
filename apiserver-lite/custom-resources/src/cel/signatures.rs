//! Functions and methods with their types, as letters of [`Ty::letter`]. Of targets `S`, `N` and `K` are lists of texts, of what has a sum and of what has an
//! order. In results `e` is the type of a list's items or of the value of an optional, `S` a
//! list of texts, `U` an URL, `q` a map of lists of texts, `o` an optional of the argument, `v` an optional list of texts, and `f` an optional format.

use std::sync::Arc;

use super::types::{Access, SizedType, Ty};

/// Longest text of an address, and of a block of them.
const IP_LEN_MAX: u64 = 39;
const CIDR_LEN_MAX: u64 = 43;
/// Longest name of a format, as in Kubernetes.
const FORMAT_LEN_MAX: u64 = 64;
/// Most texts that say what is wrong about one of a format, and the longest.
const COMPLAINTS_MAX: u64 = 8;
const COMPLAINT_LEN_MAX: u64 = 2_048;

/// Types of the items of lists that have a sum.
const SUMMABLE: &str = "iudD";
/// Types of the items of lists that have an order.
const COMPARABLE: &str = "iudBDTsb";

/// Name, target (empty for functions), arguments, result.
pub(crate) type Signature = (&'static str, &'static str, &'static str, char);

/// All functions and methods but `type` and `dyn`, which take every value.
pub(crate) const SIGNATURES: &[Signature] = &[
    ("size", "", "s", 'i'),
    ("size", "", "b", 'i'),
    ("size", "", "l", 'i'),
    ("size", "", "m", 'i'),
    ("size", "s", "", 'i'),
    ("size", "b", "", 'i'),
    ("size", "l", "", 'i'),
    ("size", "m", "", 'i'),
    ("int", "", "i", 'i'),
    ("int", "", "u", 'i'),
    ("int", "", "d", 'i'),
    ("int", "", "s", 'i'),
    ("int", "", "T", 'i'),
    ("int", "", "D", 'i'),
    ("bool", "", "B", 'B'),
    ("bool", "", "s", 'B'),
    ("uint", "", "i", 'u'),
    ("uint", "", "u", 'u'),
    ("uint", "", "d", 'u'),
    ("uint", "", "s", 'u'),
    ("double", "", "i", 'd'),
    ("double", "", "u", 'd'),
    ("double", "", "d", 'd'),
    ("double", "", "s", 'd'),
    ("string", "", "s", 's'),
    ("string", "", "B", 's'),
    ("string", "", "i", 's'),
    ("string", "", "u", 's'),
    ("string", "", "d", 's'),
    ("string", "", "b", 's'),
    ("string", "", "D", 's'),
    ("string", "", "T", 's'),
    ("string", "", "U", 's'),
    ("bytes", "", "s", 'b'),
    ("bytes", "", "b", 'b'),
    ("duration", "", "s", 'D'),
    ("duration", "", "D", 'D'),
    ("duration", "", "i", 'D'),
    ("timestamp", "", "s", 'T'),
    ("timestamp", "", "T", 'T'),
    ("timestamp", "", "i", 'T'),
    ("matches", "", "ss", 'B'),
    ("matches", "s", "s", 'B'),
    ("contains", "s", "s", 'B'),
    ("startsWith", "s", "s", 'B'),
    ("endsWith", "s", "s", 'B'),
    ("charAt", "s", "i", 's'),
    ("indexOf", "s", "s", 'i'),
    ("indexOf", "s", "si", 'i'),
    ("lastIndexOf", "s", "s", 'i'),
    ("lastIndexOf", "s", "si", 'i'),
    ("lowerAscii", "s", "", 's'),
    ("upperAscii", "s", "", 's'),
    ("replace", "s", "ss", 's'),
    ("replace", "s", "ssi", 's'),
    ("split", "s", "s", 'S'),
    ("split", "s", "si", 'S'),
    ("substring", "s", "i", 's'),
    ("substring", "s", "ii", 's'),
    ("trim", "s", "", 's'),
    ("join", "S", "", 's'),
    ("join", "S", "s", 's'),
    ("find", "s", "s", 's'),
    ("findAll", "s", "s", 'S'),
    ("findAll", "s", "si", 'S'),
    ("isSorted", "K", "", 'B'),
    ("sum", "N", "", 'e'),
    ("min", "K", "", 'e'),
    ("max", "K", "", 'e'),
    ("indexOf", "l", "*", 'i'),
    ("lastIndexOf", "l", "*", 'i'),
    ("url", "", "s", 'U'),
    ("isURL", "", "s", 'B'),
    ("getScheme", "U", "", 's'),
    ("getHost", "U", "", 's'),
    ("getHostname", "U", "", 's'),
    ("getPort", "U", "", 's'),
    ("getEscapedPath", "U", "", 's'),
    ("getQuery", "U", "", 'q'),
    ("getFullYear", "T", "", 'i'),
    ("getMonth", "T", "", 'i'),
    ("getDate", "T", "", 'i'),
    ("getDayOfMonth", "T", "", 'i'),
    ("getDayOfWeek", "T", "", 'i'),
    ("getDayOfYear", "T", "", 'i'),
    ("getHours", "T", "", 'i'),
    ("getMinutes", "T", "", 'i'),
    ("getSeconds", "T", "", 'i'),
    ("getMilliseconds", "T", "", 'i'),
    ("getFullYear", "T", "s", 'i'),
    ("getMonth", "T", "s", 'i'),
    ("getDate", "T", "s", 'i'),
    ("getDayOfMonth", "T", "s", 'i'),
    ("getDayOfWeek", "T", "s", 'i'),
    ("getDayOfYear", "T", "s", 'i'),
    ("getHours", "T", "s", 'i'),
    ("getMinutes", "T", "s", 'i'),
    ("getSeconds", "T", "s", 'i'),
    ("getMilliseconds", "T", "s", 'i'),
    ("getHours", "D", "", 'i'),
    ("getMinutes", "D", "", 'i'),
    ("getSeconds", "D", "", 'i'),
    ("getMilliseconds", "D", "", 'i'),
    ("isIP", "", "s", 'B'),
    ("ip", "", "s", 'a'),
    ("ip.isCanonical", "", "s", 'B'),
    ("string", "", "a", 's'),
    ("family", "a", "", 'i'),
    ("isUnspecified", "a", "", 'B'),
    ("isLoopback", "a", "", 'B'),
    ("isLinkLocalMulticast", "a", "", 'B'),
    ("isLinkLocalUnicast", "a", "", 'B'),
    ("isGlobalUnicast", "a", "", 'B'),
    ("isCIDR", "", "s", 'B'),
    ("cidr", "", "s", 'c'),
    ("string", "", "c", 's'),
    ("containsIP", "c", "a", 'B'),
    ("containsIP", "c", "s", 'B'),
    ("containsCIDR", "c", "c", 'B'),
    ("containsCIDR", "c", "s", 'B'),
    ("ip", "c", "", 'a'),
    ("masked", "c", "", 'c'),
    ("prefixLength", "c", "", 'i'),
    ("isQuantity", "", "s", 'B'),
    ("quantity", "", "s", 'Q'),
    ("isInteger", "Q", "", 'B'),
    ("asInteger", "Q", "", 'i'),
    ("asApproximateFloat", "Q", "", 'd'),
    ("sign", "Q", "", 'i'),
    ("sign", "", "Q", 'i'),
    ("add", "Q", "Q", 'Q'),
    ("add", "Q", "i", 'Q'),
    ("sub", "Q", "Q", 'Q'),
    ("sub", "Q", "i", 'Q'),
    ("isLessThan", "Q", "Q", 'B'),
    ("isGreaterThan", "Q", "Q", 'B'),
    ("compareTo", "Q", "Q", 'i'),
    ("format.named", "", "s", 'f'),
    ("format.dns1123Label", "", "", 'F'),
    ("format.dns1123Subdomain", "", "", 'F'),
    ("format.dns1035Label", "", "", 'F'),
    ("format.qualifiedName", "", "", 'F'),
    ("format.portName", "", "", 'F'),
    ("format.dns1123LabelPrefix", "", "", 'F'),
    ("format.dns1123SubdomainPrefix", "", "", 'F'),
    ("format.dns1035LabelPrefix", "", "", 'F'),
    ("format.labelValue", "", "", 'F'),
    ("format.uri", "", "", 'F'),
    ("format.uuid", "", "", 'F'),
    ("format.byte", "", "", 'F'),
    ("format.date", "", "", 'F'),
    ("format.datetime", "", "", 'F'),
    ("validate", "F", "s", 'v'),
];

/// Those of optionals: values that may be missing.
const OPTIONALS: &[Signature] = &[
    ("optional.of", "", "*", 'o'),
    ("optional.ofNonZeroValue", "", "*", 'o'),
    ("optional.none", "", "", 'o'),
    ("hasValue", "O", "", 'B'),
    ("value", "O", "", 'e'),
    ("orValue", "O", "*", 'e'),
    ("or", "O", "O", 'O'),
];

/// Those of the variable `authorizer` and of what it gives.
const ACCESS: &[Signature] = &[
    ("path", "A", "s", 'P'),
    ("group", "A", "s", 'G'),
    ("serviceAccount", "A", "ss", 'A'),
    ("resource", "G", "s", 'R'),
    ("subresource", "R", "s", 'R'),
    ("namespace", "R", "s", 'R'),
    ("name", "R", "s", 'R'),
    ("check", "P", "s", 'C'),
    ("check", "R", "s", 'C'),
    ("allowed", "C", "", 'B'),
    ("reason", "C", "", 's'),
    ("errored", "C", "", 'B'),
    ("error", "C", "", 's'),
];

fn all() -> impl Iterator<Item = &'static Signature> {
    SIGNATURES.iter().chain(OPTIONALS).chain(ACCESS)
}

/// Whether there is a function or method of this name.
pub(crate) fn exists(name: &str) -> bool {
    matches!(name, "type" | "dyn") || all().any(|signature| signature.0 == name)
}

/// The type of a call's result; `None` if no function has these types. The size is `max` where nothing else is known.
pub(crate) fn result(
    name: &str,
    target: Option<&SizedType>,
    args: &[SizedType],
    max: u64,
) -> Option<SizedType> {
    match (name, target, args) {
        ("type", None, [_]) => return Some(SizedType::plain(Ty::Type)),
        ("dyn", None, [arg]) => return Some(SizedType::new(Ty::Dyn, arg.max, arg.least)),
        _ => {}
    }
    let fits = |want: char, have: &SizedType| match (&have.ty, want) {
        (Ty::Dyn, _) | (_, '*') => true,
        (Ty::List(item), 'S' | 'N' | 'K') => {
            let letters = match want {
                'S' => "s",
                'N' => SUMMABLE,
                _ => COMPARABLE,
            };
            matches!(item.ty, Ty::Dyn) || letters.contains(item.ty.letter())
        }
        (have, want) => have.letter() == want,
    };
    // A list is searched for what it may have.
    if let ("indexOf" | "lastIndexOf", Some(Ty::List(item)), [arg]) =
        (name, target.map(|target| &target.ty), args)
        && !item.ty.fits(&arg.ty)
    {
        return None;
    }
    let mut found = all().filter(|(have, on, with, _)| {
        *have == name
            && match (target, on.chars().next()) {
                (Some(target), Some(want)) => fits(want, target),
                (None, None) => true,
                _ => false,
            }
            && with.len() == args.len()
            && with.chars().zip(args).all(|(want, have)| fits(want, have))
    });
    let (_, _, _, letter) = found.next()?;
    if found.any(|(_, _, _, other)| other != letter) {
        return Some(SizedType::new(Ty::Dyn, max, 1)); // dynamic values decide
    }
    if let Some(known) = of_letter(*letter, max) {
        return Some(known);
    }
    Some(match letter {
        'o' => SizedType::optional(args.first().map_or(SizedType::plain(Ty::Dyn), Clone::clone)),
        'O' => return same_optionals(target?, args),
        _ => match target.map(|target| &target.ty) {
            Some(Ty::List(item)) => SizedType::clone(item),
            Some(Ty::Optional(value)) => {
                let fits = args.iter().all(|arg| arg.ty.fits(&value.ty));
                // The value or, instead of it, the argument.
                return fits.then(|| {
                    args.iter().fold(SizedType::clone(value), |either, arg| either.or(arg))
                });
            }
            _ => SizedType::new(Ty::Dyn, max, 1),
        },
    })
}

/// The type of a result whose letter says all of it, with at most `max` elements or bytes.
fn of_letter(letter: char, max: u64) -> Option<SizedType> {
    let text = || SizedType::new(Ty::Text, max, 2);
    let access = |access| SizedType::plain(Ty::Access(access));
    let format = || SizedType::new(Ty::Format, FORMAT_LEN_MAX, 2);
    Some(match letter {
        'i' => SizedType::plain(Ty::Int),
        'u' => SizedType::plain(Ty::Uint),
        'd' => SizedType::plain(Ty::Double),
        'B' => SizedType::plain(Ty::Bool),
        's' => text(),
        'b' => SizedType::new(Ty::Bytes, max, 2),
        'D' => SizedType::plain(Ty::Duration),
        'T' => SizedType::plain(Ty::Timestamp),
        'U' => SizedType::new(Ty::Url, max, 2),
        'S' => SizedType::list(text(), max),
        'q' => {
            let values = SizedType::list(text(), max);
            SizedType::new(Ty::Map(Arc::new(text()), Arc::new(values)), max, 2)
        }
        'A' => access(Access::Authorizer),
        'P' => access(Access::Path),
        'G' => access(Access::Group),
        'R' => access(Access::Resource),
        'C' => access(Access::Decision),
        'a' => SizedType::new(Ty::Ip, IP_LEN_MAX, 2),
        'c' => SizedType::new(Ty::Cidr, CIDR_LEN_MAX, 2),
        'Q' => SizedType::new(Ty::Quantity, 1, 1),
        'F' => format(),
        'f' => SizedType::optional(format()),
        'v' => {
            let why = SizedType::new(Ty::Text, COMPLAINT_LEN_MAX, 2);
            SizedType::optional(SizedType::list(why, COMPLAINTS_MAX))
        }
        _ => return None,
    })
}

/// The type of one optional or another.
fn same_optionals(target: &SizedType, args: &[SizedType]) -> Option<SizedType> {
    let fits = args.iter().all(|arg| arg.ty.fits(&target.ty));
    fits.then(|| match (&target.ty, args) {
        (Ty::Dyn, [arg]) => SizedType::new(arg.ty.clone(), arg.max.max(target.max), arg.least),
        _ => args.iter().fold(target.clone(), |either, arg| either.or(arg)),
    })
}
