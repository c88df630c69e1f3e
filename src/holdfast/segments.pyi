from holdfast.sinks.segments.policies import Segment as Segment
from holdfast.sinks.segments.policies import age as age
from holdfast.sinks.segments.policies import pressure as pressure
from holdfast.sinks.segments.policies import rows as rows
from holdfast.sinks.segments.policies import shutdown as shutdown
from holdfast.sinks.segments.policies import size as size
from holdfast.sinks.segments.reading import SegmentsDataset as SegmentsDataset
from holdfast.sinks.segments.reading import open as open
