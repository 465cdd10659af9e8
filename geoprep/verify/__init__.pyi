from .report import VerifyReport as VerifyReport
from .report import print_report as print_report
from .report import verify as verify
