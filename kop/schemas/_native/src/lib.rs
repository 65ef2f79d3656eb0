//! The compiled half of `kop.schemas`: Avro's records as columns. `kop.schemas.avro_reading` is the same in Python, and
//! says what is wrong with the records that are bad here.
//!
//! Owns: what passes between Python and Rust.
//! Must not know: schemas.

mod avro;
mod columns;

use avro::{Default, Step};
use columns::{Bad, Column, Columns, Values};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

type Part<'py> = (usize, usize, Vec<Option<Bound<'py, PyBytes>>>);

/// The reader of records of one schema into columns of another; `program` of `kop.schemas.avro_program` says how.
#[pyclass]
struct AvroDecoder {
    step: Step,
    columns: Columns,
}

#[pymethods]
impl AvroDecoder {
    #[new]
    fn new(columns: &Bound<'_, PyList>, step: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let columns: Vec<Column> = columns.iter().map(|column| column_of(column.downcast()?)).collect::<PyResult<_>>()?;
        let step = step_of(step)?;
        Ok(AvroDecoder { step, columns: Columns(columns) })
    }

    /// Return the rows of records that are bad, and for each column its rows, its nulls and its buffers. Bad rows are
    /// null.
    fn decode<'py>(
        &mut self,
        py: Python<'py>,
        records: &Bound<'py, PyList>,
        start: usize,
    ) -> PyResult<(Vec<usize>, Vec<Part<'py>>)> {
        let mut bad = Vec::new();
        for (row, record) in records.iter().enumerate() {
            let data = record.downcast::<PyBytes>()?.as_bytes();
            let whole = match avro::read(&self.step, &mut self.columns, data, start) {
                Ok(end) => end == data.len(),
                Err(Bad) => false,
            };
            if !whole {
                self.columns.truncate(0, row);
                self.columns.add_null(0).map_err(|Bad| PyValueError::new_err("columns that do not fit"))?;
                bad.push(row);
            }
        }
        let parts = self.columns.finish().into_iter().map(|part| {
            let buffers = part.buffers.iter().map(|buffer| buffer.as_ref().map(|bytes| PyBytes::new(py, bytes)));
            (part.rows, part.nulls, buffers.collect())
        });
        Ok((bad, parts.collect()))
    }
}

fn column_of(described: &Bound<'_, PyTuple>) -> PyResult<Column> {
    let number = |at: usize| described.get_item(at)?.extract::<usize>();
    let values = match described.get_item(0)?.extract::<String>()?.as_str() {
        "bool" => Values::Bool(Vec::new()),
        "int32" => Values::Int32(Vec::new()),
        "int64" => Values::Int64(Vec::new()),
        "float32" => Values::Float32(Vec::new()),
        "float64" => Values::Float64(Vec::new()),
        "decimal" => Values::Decimal(Vec::new()),
        "bytes" => Values::Bytes { offsets: vec![0], data: Vec::new() },
        "struct" => Values::Struct(described.get_item(1)?.extract::<Vec<usize>>()?.into_boxed_slice()),
        "list" => Values::List { offsets: vec![0], items: number(1)? },
        "map" => Values::Map { offsets: vec![0], keys: number(1)?, items: number(2)? },
        other => return Err(PyValueError::new_err(format!("no column is {other}"))),
    };
    Ok(Column::new(values))
}

fn step_of(described: &Bound<'_, PyTuple>) -> PyResult<Step> {
    let item = |at: usize| described.get_item(at);
    let number = |at: usize| item(at)?.extract::<usize>();
    let whole = |at: usize| item(at)?.extract::<i64>();
    let flag = |at: usize| item(at)?.extract::<bool>();
    let inner = |at: usize| -> PyResult<Box<Step>> { Ok(Box::new(step_of(item(at)?.downcast()?)?)) };
    let steps = |at: usize| -> PyResult<Vec<Step>> {
        item(at)?.downcast::<PyList>()?.iter().map(|step| step_of(step.downcast()?)).collect()
    };
    Ok(match item(0)?.extract::<String>()?.as_str() {
        "null" => Step::Null(number(1)?),
        "bool" => Step::Bool(number(1)?),
        "whole" => Step::Whole { column: number(1)?, low: whole(2)?, high: whole(3)?, factor: whole(4)? },
        "float" => Step::Float(number(1)?),
        "double" => Step::Double(number(1)?),
        "span" => Step::Span { column: number(1)?, text: flag(2)? },
        "fixed" => Step::Fixed { column: number(1)?, size: number(2)? },
        "decimal_span" => Step::DecimalSpan { column: number(1)?, most: power(number(2)?)? },
        "decimal_fixed" => Step::DecimalFixed { column: number(1)?, size: number(2)?, most: power(number(3)?)? },
        "enum" => Step::Enum { column: number(1)?, symbols: item(2)?.extract()? },
        "record" => Step::Record {
            column: number(1)?,
            steps: steps(2)?,
            defaults: item(3)?
                .downcast::<PyList>()?
                .iter()
                .map(|default| default_of(default.downcast()?))
                .collect::<PyResult<_>>()?,
        },
        "array" => Step::Array { column: number(1)?, item: inner(2)?, empty: flag(3)? },
        "map" => Step::Map { column: number(1)?, keys: number(2)?, item: inner(3)? },
        "union" => Step::Union(steps(1)?),
        "refuse" => Step::Refuse,
        "member" => {
            Step::Member { column: number(1)?, at: number(2)?, fields: item(3)?.extract()?, inner: inner(4)? }
        }
        "skip_nothing" => Step::SkipNothing,
        "skip_bool" => Step::SkipBool,
        "skip_whole" => Step::SkipWhole { low: whole(1)?, high: whole(2)? },
        "skip_fixed" => Step::SkipFixed(number(1)?),
        "skip_span" => Step::SkipSpan,
        "skip_enum" => Step::SkipEnum(number(1)?),
        "skip_record" => Step::SkipRecord(steps(1)?),
        "skip_blocks" => Step::SkipBlocks { item: inner(1)?, keys: flag(2)?, empty: flag(3)? },
        other => return Err(PyValueError::new_err(format!("no step is {other}"))),
    })
}

fn default_of(described: &Bound<'_, PyTuple>) -> PyResult<Default> {
    let column = described.get_item(1)?.extract::<usize>()?;
    let value = described.get_item(2)?;
    Ok(match described.get_item(0)?.extract::<String>()?.as_str() {
        "null" => Default::Null(column),
        "bool" => Default::Bool(column, value.extract()?),
        "whole" => Default::Whole(column, value.extract()?),
        "float" => Default::Float(column, value.extract()?),
        "bytes" => Default::Bytes(column, value.extract()?),
        other => return Err(PyValueError::new_err(format!("no default is {other}"))),
    })
}

fn power(precision: usize) -> PyResult<i128> {
    u32::try_from(precision)
        .ok()
        .and_then(|precision| 10_i128.checked_pow(precision))
        .ok_or_else(|| PyValueError::new_err("a decimal of too many digits"))
}

#[pymodule(gil_used = true)]
fn kop_schemas(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Raised with each change of what passes between Python and Rust: kop/schemas/avro_compiled.py has the same number.
    module.add("FORMAT", 1)?;
    module.add_class::<AvroDecoder>()
}
