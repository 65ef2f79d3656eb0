//! Columns that grow row by row, and their buffers as Arrow lays them out.
//!
//! Owns: how a column is added to, how rows are taken back, its buffers.
//! Must not know: Avro, Python.

/// The error of a record that is not what its schema says. The readable twin says why.
pub struct Bad;

pub enum Values {
    Bool(Vec<u8>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Decimal(Vec<i128>),
    Bytes { offsets: Vec<i32>, data: Vec<u8> },
    Struct(Box<[usize]>),
    List { offsets: Vec<i32>, items: usize },
    Map { offsets: Vec<i32>, keys: usize, items: usize },
}

pub struct Column {
    pub values: Values,
    /// 1 for each row that is there, 0 for null.
    valid: Vec<u8>,
    nulls: usize,
}

/// A column as it leaves: rows, nulls, and its buffers, the validity first.
pub struct Finished {
    pub rows: usize,
    pub nulls: usize,
    pub buffers: Vec<Option<Vec<u8>>>,
}

impl Column {
    pub fn new(values: Values) -> Self {
        Column { values, valid: Vec::new(), nulls: 0 }
    }

    pub fn rows(&self) -> usize {
        self.valid.len()
    }

    pub fn mark_valid(&mut self) {
        self.valid.push(1);
    }

    fn mark_null(&mut self) {
        self.valid.push(0);
        self.nulls += 1;
    }

    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), Bad> {
        let Values::Bytes { offsets, data } = &mut self.values else { return Err(Bad) };
        let end = i32::try_from(data.len() + bytes.len()).map_err(|_| Bad)?;
        data.extend_from_slice(bytes);
        offsets.push(end);
        self.mark_valid();
        Ok(())
    }

    pub fn push_bool(&mut self, value: bool) -> Result<(), Bad> {
        let Values::Bool(values) = &mut self.values else { return Err(Bad) };
        values.push(value.into());
        self.mark_valid();
        Ok(())
    }

    /// Append a whole number to a column of numbers of any kind.
    pub fn push_whole(&mut self, value: i64) -> Result<(), Bad> {
        match &mut self.values {
            Values::Int32(values) => values.push(i32::try_from(value).map_err(|_| Bad)?),
            Values::Int64(values) => values.push(value),
            Values::Float32(values) => values.push(value as f64 as f32),
            Values::Float64(values) => values.push(value as f64),
            _ => return Err(Bad),
        }
        self.mark_valid();
        Ok(())
    }

    pub fn push_float(&mut self, value: f64) -> Result<(), Bad> {
        match &mut self.values {
            Values::Float32(values) => values.push(value as f32),
            Values::Float64(values) => values.push(value),
            _ => return Err(Bad),
        }
        self.mark_valid();
        Ok(())
    }

    pub fn push_float32(&mut self, value: f32) -> Result<(), Bad> {
        match &mut self.values {
            Values::Float32(values) => values.push(value),
            Values::Float64(values) => values.push(value.into()),
            _ => return Err(Bad),
        }
        self.mark_valid();
        Ok(())
    }

    pub fn push_decimal(&mut self, value: i128) -> Result<(), Bad> {
        let Values::Decimal(values) = &mut self.values else { return Err(Bad) };
        values.push(value);
        self.mark_valid();
        Ok(())
    }
}

/// All columns, nested ones among them, by number.
pub struct Columns(pub Vec<Column>);

impl Columns {
    pub fn add_null(&mut self, at: usize) -> Result<(), Bad> {
        let column = &mut self.0[at];
        match &mut column.values {
            Values::Bool(values) => values.push(0),
            Values::Int32(values) => values.push(0),
            Values::Int64(values) => values.push(0),
            Values::Float32(values) => values.push(0.0),
            Values::Float64(values) => values.push(0.0),
            Values::Decimal(values) => values.push(0),
            Values::Bytes { offsets, .. } | Values::List { offsets, .. } | Values::Map { offsets, .. } => {
                offsets.push(*offsets.last().ok_or(Bad)?)
            }
            Values::Struct(fields) => {
                let fields = fields.clone();
                for field in fields {
                    self.add_null(field)?;
                }
            }
        }
        self.0[at].mark_null();
        Ok(())
    }

    /// End a list or a map: the items since the last one are its own. A map may not have a key twice.
    pub fn close(&mut self, at: usize) -> Result<(), Bad> {
        let (items, keys) = match &self.0[at].values {
            Values::List { items, .. } => (*items, None),
            Values::Map { items, keys, .. } => (*items, Some(*keys)),
            _ => return Err(Bad),
        };
        let count = i32::try_from(self.0[items].rows()).map_err(|_| Bad)?;
        let (Values::List { offsets, .. } | Values::Map { offsets, .. }) = &mut self.0[at].values else {
            return Err(Bad);
        };
        let begin = *offsets.last().ok_or(Bad)?;
        offsets.push(count);
        if let Some(keys) = keys {
            self.has_each_once(keys, begin as usize, count as usize)?;
        }
        self.0[at].mark_valid();
        Ok(())
    }

    fn has_each_once(&self, keys: usize, begin: usize, end: usize) -> Result<(), Bad> {
        let Values::Bytes { offsets, data } = &self.0[keys].values else { return Err(Bad) };
        let key = |row: usize| &data[offsets[row] as usize..offsets[row + 1] as usize];
        if end - begin <= 8 {
            let twice = (begin..end).any(|row| (begin..row).any(|before| key(before) == key(row)));
            return if twice { Err(Bad) } else { Ok(()) };
        }
        let different: std::collections::HashSet<&[u8]> = (begin..end).map(key).collect();
        if different.len() < end - begin { Err(Bad) } else { Ok(()) }
    }

    /// Take back all rows of a column but the first ones, also those that only some of its parts have.
    pub fn truncate(&mut self, at: usize, rows: usize) {
        let column = &mut self.0[at];
        let gone = column.valid.iter().skip(rows).filter(|valid| **valid == 0).count();
        column.nulls -= gone;
        column.valid.truncate(rows);
        match &mut column.values {
            Values::Bool(values) => values.truncate(rows),
            Values::Int32(values) => values.truncate(rows),
            Values::Int64(values) => values.truncate(rows),
            Values::Float32(values) => values.truncate(rows),
            Values::Float64(values) => values.truncate(rows),
            Values::Decimal(values) => values.truncate(rows),
            Values::Bytes { offsets, data } => {
                offsets.truncate(rows + 1);
                data.truncate(offsets[rows] as usize);
            }
            Values::Struct(fields) => {
                let fields = fields.clone();
                for field in fields {
                    self.truncate(field, rows);
                }
            }
            Values::List { offsets, items } => {
                offsets.truncate(rows + 1);
                let (items, count) = (*items, offsets[rows] as usize);
                self.truncate(items, count);
            }
            Values::Map { offsets, keys, items } => {
                offsets.truncate(rows + 1);
                let (keys, items, count) = (*keys, *items, offsets[rows] as usize);
                self.truncate(keys, count);
                self.truncate(items, count);
            }
        }
    }

    /// The columns, by number; those that are left have no rows.
    pub fn finish(&mut self) -> Vec<Finished> {
        self.0.iter_mut().map(Column::finish).collect()
    }
}

impl Column {
    fn finish(&mut self) -> Finished {
        let rows = self.valid.len();
        let mut buffers = vec![if self.nulls == 0 { None } else { Some(packed(&self.valid)) }];
        match &mut self.values {
            Values::Bool(values) => {
                buffers.push(Some(packed(values)));
                values.clear();
            }
            Values::Int32(values) => buffers.push(Some(bytes_of(values, i32::to_le_bytes))),
            Values::Int64(values) => buffers.push(Some(bytes_of(values, i64::to_le_bytes))),
            Values::Float32(values) => buffers.push(Some(bytes_of(values, f32::to_le_bytes))),
            Values::Float64(values) => buffers.push(Some(bytes_of(values, f64::to_le_bytes))),
            Values::Decimal(values) => buffers.push(Some(bytes_of(values, i128::to_le_bytes))),
            Values::Bytes { offsets, data } => {
                buffers.push(Some(bytes_of(offsets, i32::to_le_bytes)));
                offsets.push(0);
                buffers.push(Some(std::mem::take(data)));
            }
            Values::Struct(_) => {}
            Values::List { offsets, .. } | Values::Map { offsets, .. } => {
                buffers.push(Some(bytes_of(offsets, i32::to_le_bytes)));
                offsets.push(0);
            }
        }
        let nulls = std::mem::take(&mut self.nulls);
        self.valid.clear();
        Finished { rows, nulls, buffers }
    }
}

/// Eight rows a byte, the first one in the lowest bit.
fn packed(rows: &[u8]) -> Vec<u8> {
    rows.chunks(8).map(|eight| eight.iter().enumerate().fold(0, |byte, (at, row)| byte | row << at)).collect()
}

fn bytes_of<T: Copy, const N: usize>(values: &mut Vec<T>, convert: fn(T) -> [u8; N]) -> Vec<u8> {
    let made = values.iter().flat_map(|value| convert(*value)).collect();
    values.clear();
    made
}
