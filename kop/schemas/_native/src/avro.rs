//! Avro's binary encoding into columns, by steps that Python put together for a pair of schemas.
//!
//! Owns: the encoding, strictly: what is not Avro is bad, and so is what a step cannot have.
//! Must not know: schemas and their resolution, Python.

use crate::columns::{Bad, Columns};

/// The most items without bytes that a block may say it has.
const MOST_EMPTY: u64 = 1_000_000;

pub enum Step {
    /// Null: no bytes, and a null in the column.
    Null(usize),
    Bool(usize),
    Whole { column: usize, low: i64, high: i64, factor: i64 },
    Float(usize),
    Double(usize),
    Span { column: usize, text: bool },
    Fixed { column: usize, size: usize },
    DecimalSpan { column: usize, most: i128 },
    DecimalFixed { column: usize, size: usize, most: i128 },
    Enum { column: usize, symbols: Vec<Option<Vec<u8>>> },
    Record { column: usize, steps: Vec<Step>, defaults: Vec<Default> },
    Array { column: usize, item: Box<Step>, empty: bool },
    Map { column: usize, keys: usize, item: Box<Step> },
    Union(Vec<Step>),
    /// A branch that the reader's schema does not have.
    Refuse,
    /// A member of a union that is a struct of its members.
    Member { column: usize, at: usize, fields: Vec<usize>, inner: Box<Step> },
    // Values that no column has.
    SkipNothing,
    SkipBool,
    SkipWhole { low: i64, high: i64 },
    SkipFixed(usize),
    SkipSpan,
    SkipEnum(usize),
    SkipRecord(Vec<Step>),
    SkipBlocks { item: Box<Step>, keys: bool, empty: bool },
}

/// What stands in a column if the writer's schema does not have its field.
pub enum Default {
    Null(usize),
    Bool(usize, bool),
    Whole(usize, i64),
    Float(usize, f64),
    Bytes(usize, Vec<u8>),
}

/// Read a value at a position, append it to its columns, and return the position behind it.
pub fn read(step: &Step, columns: &mut Columns, data: &[u8], at: usize) -> Result<usize, Bad> {
    match step {
        Step::Null(column) => columns.add_null(*column).map(|()| at),
        Step::Bool(column) => {
            columns.0[*column].push_bool(boolean(data, at)?)?;
            Ok(at + 1)
        }
        Step::Whole { column, low, high, factor } => {
            let (value, at) = number(data, at)?;
            if value < *low || value > *high {
                return Err(Bad);
            }
            columns.0[*column].push_whole(value.checked_mul(*factor).ok_or(Bad)?)?;
            Ok(at)
        }
        Step::Float(column) => {
            let bytes: [u8; 4] = fixed(data, at, 4)?.try_into().map_err(|_| Bad)?;
            columns.0[*column].push_float32(f32::from_le_bytes(bytes))?;
            Ok(at + 4)
        }
        Step::Double(column) => {
            let bytes: [u8; 8] = fixed(data, at, 8)?.try_into().map_err(|_| Bad)?;
            columns.0[*column].push_float(f64::from_le_bytes(bytes))?;
            Ok(at + 8)
        }
        Step::Span { column, text } => {
            let (bytes, at) = span(data, at)?;
            if *text {
                std::str::from_utf8(bytes).map_err(|_| Bad)?;
            }
            columns.0[*column].push_bytes(bytes)?;
            Ok(at)
        }
        Step::Fixed { column, size } => {
            columns.0[*column].push_bytes(fixed(data, at, *size)?)?;
            Ok(at + size)
        }
        Step::DecimalSpan { column, most } => {
            let (bytes, at) = span(data, at)?;
            columns.0[*column].push_decimal(decimal(bytes, *most)?)?;
            Ok(at)
        }
        Step::DecimalFixed { column, size, most } => {
            columns.0[*column].push_decimal(decimal(fixed(data, at, *size)?, *most)?)?;
            Ok(at + size)
        }
        Step::Enum { column, symbols } => {
            let (index, at) = number(data, at)?;
            let symbol = usize::try_from(index).ok().and_then(|index| symbols.get(index)).ok_or(Bad)?;
            columns.0[*column].push_bytes(symbol.as_ref().ok_or(Bad)?)?;
            Ok(at)
        }
        Step::Record { column, steps, defaults } => {
            let mut at = at;
            for step in steps {
                at = read(step, columns, data, at)?;
            }
            for default in defaults {
                add(default, columns)?;
            }
            columns.0[*column].mark_valid();
            Ok(at)
        }
        Step::Array { column, item, empty } => {
            let at = blocks(data, at, *empty, |at| read(item, columns, data, at))?;
            columns.close(*column)?;
            Ok(at)
        }
        Step::Map { column, keys, item } => {
            let at = blocks(data, at, false, |at| {
                let (key, at) = span(data, at)?;
                std::str::from_utf8(key).map_err(|_| Bad)?;
                columns.0[*keys].push_bytes(key)?;
                read(item, columns, data, at)
            })?;
            columns.close(*column)?;
            Ok(at)
        }
        Step::Union(branches) => {
            let (index, at) = number(data, at)?;
            let branch = usize::try_from(index).ok().and_then(|index| branches.get(index)).ok_or(Bad)?;
            read(branch, columns, data, at)
        }
        Step::Refuse => Err(Bad),
        Step::Member { column, at: member, fields, inner } => {
            let at = read(inner, columns, data, at)?;
            for (place, field) in fields.iter().enumerate() {
                if place != *member {
                    columns.add_null(*field)?;
                }
            }
            columns.0[*column].mark_valid();
            Ok(at)
        }
        Step::SkipNothing => Ok(at),
        Step::SkipBool => boolean(data, at).map(|_| at + 1),
        Step::SkipWhole { low, high } => {
            let (value, at) = number(data, at)?;
            if value < *low || value > *high { Err(Bad) } else { Ok(at) }
        }
        Step::SkipFixed(size) => fixed(data, at, *size).map(|_| at + size),
        Step::SkipSpan => span(data, at).map(|(_, at)| at),
        Step::SkipEnum(count) => {
            let (index, at) = number(data, at)?;
            if usize::try_from(index).map_err(|_| Bad)? < *count { Ok(at) } else { Err(Bad) }
        }
        Step::SkipRecord(steps) => steps.iter().try_fold(at, |at, step| read(step, columns, data, at)),
        Step::SkipBlocks { item, keys, empty } => blocks(data, at, *empty, |at| {
            let at = if *keys { span(data, at)?.1 } else { at };
            read(item, columns, data, at)
        }),
    }
}

fn add(default: &Default, columns: &mut Columns) -> Result<(), Bad> {
    match default {
        Default::Null(column) => columns.add_null(*column),
        Default::Bool(column, value) => columns.0[*column].push_bool(*value),
        Default::Whole(column, value) => columns.0[*column].push_whole(*value),
        Default::Float(column, value) => columns.0[*column].push_float(*value),
        Default::Bytes(column, value) => columns.0[*column].push_bytes(value),
    }
}

/// A zigzag number of up to 64 bits, and the position behind it.
fn number(data: &[u8], at: usize) -> Result<(i64, usize), Bad> {
    let first = *data.get(at).ok_or(Bad)?;
    let mut value = u64::from(first & 127);
    let mut at = at + 1;
    if first > 127 {
        let mut shift = 7;
        loop {
            let byte = *data.get(at).ok_or(Bad)?;
            at += 1;
            if shift == 63 && byte > 1 {
                return Err(Bad);
            }
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
            shift += 7;
        }
    }
    Ok(((value >> 1) as i64 ^ -((value & 1) as i64), at))
}

fn boolean(data: &[u8], at: usize) -> Result<bool, Bad> {
    match data.get(at) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(Bad),
    }
}

fn fixed(data: &[u8], at: usize, size: usize) -> Result<&[u8], Bad> {
    data.get(at..at.checked_add(size).ok_or(Bad)?).ok_or(Bad)
}

fn span(data: &[u8], at: usize) -> Result<(&[u8], usize), Bad> {
    let (size, at) = number(data, at)?;
    let bytes = fixed(data, at, usize::try_from(size).map_err(|_| Bad)?)?;
    Ok((bytes, at + bytes.len()))
}

/// A whole number, big-endian, that is smaller than `most` without its sign.
fn decimal(bytes: &[u8], most: i128) -> Result<i128, Bad> {
    let negative = bytes.first().is_some_and(|byte| *byte > 127);
    let sign = if negative { 255 } else { 0 };
    let extra = bytes.len().saturating_sub(16);
    if bytes[..extra].iter().any(|byte| *byte != sign) {
        return Err(Bad);
    }
    let low = &bytes[extra..];
    if extra > 0 && (low[0] > 127) != negative {
        return Err(Bad);
    }
    let mut wide = [sign; 16];
    wide[16 - low.len()..].copy_from_slice(low);
    let value = i128::from_be_bytes(wide);
    if value <= -most || value >= most { Err(Bad) } else { Ok(value) }
}

/// Call `item` for each item of the blocks of an array or a map, which begin at a position; return the one behind them.
fn blocks(
    data: &[u8],
    at: usize,
    empty: bool,
    mut item: impl FnMut(usize) -> Result<usize, Bad>,
) -> Result<usize, Bad> {
    let mut at = at;
    loop {
        let (count, behind) = number(data, at)?;
        at = behind;
        let mut end = None;
        if count < 0 {
            let (size, behind) = number(data, at)?;
            at = behind;
            end = Some(at.checked_add(usize::try_from(size).map_err(|_| Bad)?).ok_or(Bad)?);
        }
        let count = count.unsigned_abs();
        if count == 0 {
            return Ok(at);
        }
        if count > if empty { MOST_EMPTY } else { (data.len() - at) as u64 } {
            return Err(Bad);
        }
        for _ in 0..count {
            at = item(at)?;
        }
        if end.is_some_and(|end| end != at) {
            return Err(Bad);
        }
    }
}
