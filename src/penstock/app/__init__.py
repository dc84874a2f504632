"""What a Python developer holds: the app, its job types, and handles on jobs and flows."""

from penstock.app.flow import Flow, FlowHandle
from penstock.app.handle import JobHandle
from penstock.app.job_type import JobType
from penstock.app.penstock import Penstock

__all__ = ["Flow", "FlowHandle", "JobHandle", "JobType", "Penstock"]
